"""Autotune: search for faster settings while a job trains, and reuse them in later jobs.

``search`` decides what to measure next (pure), ``tuner`` measures on rank 0 between training steps, and ``results``
keeps what was found. No setting changes a bit of a result, so the other ranks need not know about the search: rank 0
changes the engine's thresholds (``Engine.retune``) and PyTorch's bucket sizes (``gradients.bucket_tuning``), and all
ranks switch at a position on which they agree.
"""
