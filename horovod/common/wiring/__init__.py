"""From the worker's environment to a running engine."""
