"""Reads the files that ``HOROVOD_TIMELINE`` makes: ``python -m horovod.timeline merge | summary | view``."""
