"""Start a rank's engine from its environment variables."""
