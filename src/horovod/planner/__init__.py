"""Planner that predicts how fast a model would train on a cluster (docs/planner.md).

- ``profile``: profile of a training step, with its compute times and gradients.
- ``network``: hosts and links, with calibrated or default constants, and the duration of one allreduce on two levels
  of links, computed with the engine's cost formulas.
- ``simulate``: simulation of one step, with fusion by the engine's code, overlap and stragglers.
- ``predict``: efficiency of a job, its limiting factor, and the effects of changes. ``report`` presents the results.
"""
