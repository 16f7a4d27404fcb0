"""Bootstrap of a rank, from its environment variables to a running engine."""
