"""Collectives of the PyTorch frontend, one module for each.

Use the public names exported by ``horovod.torch`` and ``horovod.torch.mpi_ops``.
"""
