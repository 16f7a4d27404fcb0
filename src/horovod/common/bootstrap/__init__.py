"""Bootstrap of a rank: from environment variables to a running engine."""
