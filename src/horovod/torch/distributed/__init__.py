"""torch.distributed in Horovod jobs."""
