"""Measures the collectives of the job it runs in: `python -m horovod.benchmark`, `horovodrun --benchmark`.

options     what is asked for
session     one rank's part: engines and peers are set up, then measured in turns; rank 0 writes it all down
cases       sizes, and how often each is measured
engines     the engine as a thing that is measured, one for each algorithm
peers       gloo in the same processes, MPI in processes of its own (jobs, standalone/)
model       fits the cost model of core/plan, which stands beside the measured times
report      from samples to numbers, tables and JSON;  plot: to pictures
"""
