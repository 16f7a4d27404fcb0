"""Names that programs written for Horovod import from here; nothing of ours does."""
