"""Planner: how fast a model would train on a cluster, predicted before the cluster exists (docs/planner.md).

profile     profile of a step: gradients in the order of readiness, compute times;  describe: from a model description
network     hosts and links, calibrated or assumed
costs       one allreduce on two levels of links, composed of the engine's cost formulas
simulate    one step: readiness, fusion by the engine's code, transfers, overlap, stragglers
predict     efficiency, limit, sensitivity;  report, plot: as text, JSON and pictures
"""
