"""Least-squares fit of the cost model's parameters (core/plan/cost.h) to measured times.

The formulas are linear in alpha, beta, gamma and their local counterparts, so this is a linear least-squares problem.
Residuals are relative to the measured times, because otherwise the largest messages would dominate. Parameters are
times and therefore not negative (C. Lawson, R. Hanson, Solving Least Squares Problems, 1974). Because there are so few
unknowns, the solver can try all subsets of them. The input can include other collectives than allreduce, and the model
then predicts their times too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Final

from horovod import _core
from horovod.benchmark.engines import EngineColumn
from horovod.benchmark.options import make_cases
from horovod.benchmark.report import quantile, slowest
from horovod.benchmark.standalone.serving import timed
from horovod.common.objects import allgather_object, broadcast_object

Row = tuple[list[float], float]
"""Coefficients of the parameters, and the measured seconds."""


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve a linear system by Gaussian elimination with pivoting. Return None if the matrix is singular."""
    n = len(right)
    rows = [[*matrix[i], right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(rows[k][i]))
        if abs(rows[pivot][i]) < 1e-12:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(n):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def least_squares(rows: Sequence[Row]) -> list[float]:
    """Return the non-negative parameters that minimize the sum of squared relative errors.

    Raises:
        ValueError: If there are no rows, or if a measured time is not positive.
    """
    if not rows or any(seconds <= 0 for _, seconds in rows):
        raise ValueError("rows are needed, with measured times above 0")
    scaled = [[value / seconds for value in features] for features, seconds in rows]
    # Byte counts are in the millions, but message counts are small. Scale all columns to
    # the same magnitude to keep the solver accurate.
    count = len(scaled[0])
    units = [max(max(abs(row[j]) for row in scaled), 1e-300) for j in range(count)]
    scaled = [[value / unit for value, unit in zip(row, units, strict=True)] for row in scaled]
    best, least = [0.0] * count, float(len(rows))
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            matrix = [[sum(row[i] * row[j] for row in scaled) for j in chosen] for i in chosen]
            found = _solve(matrix, [sum(row[i] for row in scaled) for i in chosen])
            if found is None or min(found) < 0:
                continue
            values = [0.0] * count
            for index, value in zip(chosen, found, strict=True):
                values[index] = value
            error = sum((sum(v * x for v, x in zip(values, row, strict=True)) - 1) ** 2 for row in scaled)
            if error < least:
                best, least = values, error
    return [value / unit for value, unit in zip(best, units, strict=True)]


Measured = tuple[str, str, int, float]
"""Collective, algorithm, bytes, seconds."""


def fit(
    measured: Sequence[Measured],
    node_of: list[int],
    parameters: Sequence[str],
    predict: Callable[..., float] = _core.predict,
) -> dict[str, float]:
    """Return fitted values of ``parameters`` (names of the cost model).

    The fit assumes that all other parameters are zero. So the measured algorithms must not depend on them.
    """
    zeros = dict.fromkeys(_core.cost_model(), 0.0)
    rows: list[Row] = []
    for collective, algorithm, nbytes, seconds in measured:
        features = [predict(collective, algorithm, nbytes, node_of, {**zeros, name: 1.0}) for name in parameters]
        rows.append((features, seconds))
    return dict(zip(parameters, least_squares(rows), strict=True))


FITTED: Final = ("barrier", "alltoall", "reducescatter")
_SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20)
_TURNS = 3


def fit_model(engines: Sequence[EngineColumn], rank: int, size: int) -> dict[str, float]:
    """Fit the parameters of the cost model. The result is equal on all ranks.

    Parameters of shared memory come from an engine in which all ranks share memory. Parameters of links come from an
    engine in which no ranks share memory. Parameters that no engine can measure keep their defaults.
    """
    parameters = dict(_core.cost_model())
    kinds = {len(set(engine.node_of)): engine for engine in engines}
    for nodes, engine in sorted(kinds.items()):
        if size == 1 or 1 < nodes < size:
            continue  # with several ranks per host, the fit cannot separate local and remote costs
        names = ("local_alpha", "local_beta", "gamma") if nodes == 1 else ("alpha", "beta", "gamma")
        measured = _times(engine, size)
        fitted = fit(measured, engine.node_of, names) if rank == 0 else None
        parameters |= broadcast_object(fitted, 0, "benchmark.fit.model")
    return parameters


def _times(engine: EngineColumn, size: int) -> list[Measured]:
    cases = [case for collective in FITTED for case in make_cases(collective, _SIZES, size)]
    operations = [engine.prepare(case) for case in cases]
    local: list[list[float]] = [[] for _ in cases]
    for _ in range(_TURNS):
        for case, operation, samples in zip(cases, operations, local, strict=True):
            samples += timed(operation, engine.barrier, case.inner, max(case.samples // 4, 3), case.inner)
    by_rank = allgather_object(local, "benchmark.fit.times")
    found: list[Measured] = []
    for index, case in enumerate(cases):
        seconds = quantile(slowest([ranks[index] for ranks in by_rank]), 0.5)
        found.append((case.collective, engine.algorithm(case), case.bytes, seconds))
    return found
