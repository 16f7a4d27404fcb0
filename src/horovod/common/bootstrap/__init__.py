"""Bootstrap of a rank: from the worker's environment to a running engine."""
