"""The collectives of the PyTorch face, a file each. ``horovod.torch`` and ``horovod.torch.mpi_ops`` export the public
names."""
