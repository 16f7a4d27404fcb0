"""Modules at import paths that the original Horovod documents. No other part of Horovod uses them."""
