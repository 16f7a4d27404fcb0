"""Modules at import paths that the original Horovod documents, for compatibility. Horovod itself does not use them."""
