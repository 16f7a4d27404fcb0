"""Scripts that need only the standard library, so that they run in environments without Horovod."""
