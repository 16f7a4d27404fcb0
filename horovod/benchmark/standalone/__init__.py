"""Scripts that also run in environments without horovod, such as MPI's: the standard library only, started by path."""
