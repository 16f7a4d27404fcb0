"""Benchmark of a job's collectives: `python -m horovod.benchmark` or `horovodrun --benchmark`.

- ``options``: command-line options, the sizes to measure, and the number of measurements per size.
- ``session``: one rank's part, which sets up engines and peers and measures them in turn. Rank 0 writes the results.
- ``engines``: the engine under test, in one configuration per algorithm.
- ``calibrate``: sizes at which collectives switch algorithms, and the fit of the cost model of core/plan.
- ``jobs``: libraries for comparison, gloo in the same processes and MPI in separate processes (``standalone``).
- ``report``: conversion of samples to statistics, tables, JSON and plots.
"""
