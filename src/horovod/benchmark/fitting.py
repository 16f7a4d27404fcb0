"""Measurements for fitting the cost model: other collectives than the allreduce that it is to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from horovod import _core
from horovod.benchmark import model
from horovod.benchmark.cases import make_cases
from horovod.benchmark.engines import EngineColumn
from horovod.benchmark.report import quantile, slowest
from horovod.benchmark.standalone.serving import timed
from horovod.common.objects import allgather_object, broadcast_object

FITTED: Final = ("barrier", "alltoall", "reducescatter")
_SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20)
_TURNS = 3


def fit_model(engines: Sequence[EngineColumn], rank: int, size: int) -> dict[str, float]:
    """Return the parameters of the cost model; equal on all ranks.

    Parameters of shared memory come from an engine whose ranks all share it, those of links from one whose ranks share
    nothing. Parameters that no engine can measure keep their defaults.
    """
    parameters = dict(_core.cost_model())
    kinds = {len(set(engine.node_of)): engine for engine in engines}
    for nodes, engine in sorted(kinds.items()):
        if size == 1 or 1 < nodes < size:
            continue  # several ranks per host: local and remote costs cannot be separated
        names = ("local_alpha", "local_beta", "gamma") if nodes == 1 else ("alpha", "beta", "gamma")
        measured = _times(engine, size)
        fitted = model.fit(measured, engine.node_of, names) if rank == 0 else None
        parameters |= broadcast_object(fitted, 0, "benchmark.fit.model")
    return parameters


def _times(engine: EngineColumn, size: int) -> list[model.Measured]:
    cases = [case for collective in FITTED for case in make_cases(collective, _SIZES, size)]
    operations = [engine.prepare(case) for case in cases]
    local: list[list[float]] = [[] for _ in cases]
    for _ in range(_TURNS):
        for case, operation, samples in zip(cases, operations, local, strict=True):
            samples += timed(operation, engine.barrier, case.inner, max(case.samples // 4, 3), case.inner)
    by_rank = allgather_object(local, "benchmark.fit.times")
    found: list[model.Measured] = []
    for index, case in enumerate(cases):
        seconds = quantile(slowest([ranks[index] for ranks in by_rank]), 0.5)
        found.append((case.collective, engine.algorithm(case), case.bytes, seconds))
    return found
