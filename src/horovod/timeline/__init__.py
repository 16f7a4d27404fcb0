"""Tools for ``HOROVOD_TIMELINE`` files: ``python -m horovod.timeline merge | summary | view``."""
