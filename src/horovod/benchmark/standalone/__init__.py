"""Scripts that also run in environments without horovod, such as MPI's: standard library only, started by path."""
