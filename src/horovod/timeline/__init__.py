"""Reader of the files that ``HOROVOD_TIMELINE`` creates: ``python -m horovod.timeline merge | summary | view``."""
