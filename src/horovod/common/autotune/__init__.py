"""Autotune: search for faster settings while a job trains, and reuse them in later jobs.

``search`` picks the next candidate, ``tuner`` measures on rank 0 between training steps, and ``results`` stores the
best settings. The settings never change a result, so the other ranks need not take part in the search. Rank 0 changes
the engine's thresholds (``Engine.retune``) and PyTorch's bucket sizes (``gradients.bucket_tuning``). All ranks then
switch at a position on which they agree.
"""
