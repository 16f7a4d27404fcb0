"""Collectives of the PyTorch frontend, one per module.

Use the public names exported by ``horovod.torch`` and ``horovod.torch.mpi_ops``.
"""
