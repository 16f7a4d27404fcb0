"""Modules that run one job, from connecting to the agents until the last process has exited."""
