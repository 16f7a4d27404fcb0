"""Scripts that need only the standard library, so that they run without horovod, as in MPI's environment."""
