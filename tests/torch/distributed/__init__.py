"""torch.distributed over Horovod."""
