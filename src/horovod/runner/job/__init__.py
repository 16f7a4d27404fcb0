"""Execution of one job, from connecting to the agents until its last process has exited."""
