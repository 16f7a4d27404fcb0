"""Modules of Horovod's documented import paths. Horovod itself does not use them."""
