"""Benchmark of a job's collectives: `python -m horovod.benchmark` or `horovodrun --benchmark`.

options     command-line options
session     one rank's part: sets up engines and peers and measures them in turn; rank 0 writes the results
cases       sizes, and how often each is measured
engines     the engine under test, one per algorithm
peers       gloo in the same processes, MPI in separate processes (jobs, standalone/)
model       fits the cost model of core/plan, whose predictions are shown beside the measured times
report      from samples to numbers, tables and JSON;  plot: to pictures
"""
