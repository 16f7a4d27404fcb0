"""Scripts that need only the standard library, so they run in environments without Horovod, such as MPI's."""
