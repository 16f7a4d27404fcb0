"""Modules under import paths that Horovod documents. Horovod itself does not use them."""
