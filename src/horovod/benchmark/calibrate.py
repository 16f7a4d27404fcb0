"""Calibration of the message sizes at which collectives switch algorithms (core/plan/tuning.h).

The resulting sizes are stored for later jobs with the same layout of ranks on this host
(horovod.common.bootstrap.calibration). All ranks run the calibration together, and rank 0 decides.

For each size to tune, two or more engines that differ only in this size take turns. A new value replaces the default
only if it is faster by more than a few percent in nearly all turns. At the end, all new values together must be faster
than the defaults. So noise in a measurement does not change any value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from horovod import _core
from horovod.benchmark.engines import EngineColumn
from horovod.benchmark.options import Case, make_cases
from horovod.benchmark.report import quantile, slowest
from horovod.benchmark.standalone.serving import timed
from horovod.common.objects import allgather_object, broadcast_object

KIB, MIB = 1 << 10, 1 << 20
TURNS = 6
MARGIN = 0.03
"""Fraction of the time by which a value must be faster than the default."""
_ALWAYS = 1 << 40


@dataclass(frozen=True)
class Sweep:
    """Plan for measuring one tuned size.

    With two ``values``, the tuned size is a threshold up to which a particular algorithm is used. The first value
    disables the algorithm, and the second enables it for all sizes. The result is the largest size in ``cases`` up to
    which the second value is faster. More than two values are candidates for the tuned size, and the value that is
    fastest over all cases is the result.

    Attributes:
        name: Name of the tuned size.
        values: Values to compare.
        cases: (collective, size in bytes, True if in place) of each measurement.
    """

    name: str
    values: tuple[int, ...]
    cases: tuple[tuple[str, int, bool], ...]
    above: bool = False
    """True if the algorithm is used from the tuned size on, instead of up to it."""


def sweeps(node_of: Sequence[int]) -> list[Sweep]:
    """Return the sweeps to measure in a job. Ranks with the same ``node_of`` value share memory."""
    nodes, size = len(set(node_of)), len(node_of)
    shared = nodes < size
    found = []
    if nodes == 1:
        direct = tuple(("allreduce", n * KIB, True) for n in (2, 4, 8, 16, 32, 64))
        found.append(Sweep("direct_bytes", (0, 4 * MIB), direct))
    if shared:
        large = tuple(("allreduce", n * MIB, True) for n in (1, 4, 8))
        found.append(Sweep("chunk_bytes", tuple(n * KIB for n in (32, 64, 128, 256)), large))
        apart = tuple(("allreduce", n * MIB, False) for n in (1, 2, 4, 8, 16))
        found.append(Sweep("stream_bytes", (_ALWAYS, 0), apart, above=True))
    if nodes == size:
        # Allreduce uses recursive doubling up to this limit. With two ranks, the limit is the larger of pair_bytes and
        # doubling_bytes. By default, this is pair_bytes.
        name, sizes = ("pair_bytes", (128, 256, 512, 1024, 2048)) if size == 2 else ("doubling_bytes", (4, 16, 64, 256))
        found.append(Sweep(name, (0, _ALWAYS), tuple(("allreduce", n * KIB, True) for n in sizes)))
    if nodes > 1 and size > 2:
        name = "flat_tree_bytes" if nodes == size else "tree_bytes"
        found.append(Sweep(name, (0, _ALWAYS), tuple(("broadcast", n * KIB, True) for n in (64, 256, 1024, 2048))))
    return found


Times = dict[tuple[int, int], list[float]]
"""Seconds in each repetition of a measurement, by (index of the tuning, index of the case)."""


def better(new: Sequence[float], old: Sequence[float]) -> bool:
    """Return True if ``new`` is faster than ``old``.

    The median of the time ratios must be below 1 - MARGIN, and ``new`` must be faster in five of six measurements.
    """
    ratios = [a / b for a, b in zip(new, old, strict=True)]
    wins = sum(ratio < 1 for ratio in ratios)
    return quantile(ratios, 0.5) < 1 - MARGIN and wins >= len(ratios) - len(ratios) // 6


def threshold(sweep: Sweep, times: Times, default: int, scale: Callable[[int], int] = int) -> int:
    """Return the size up to which (if ``sweep.above``, from which) the tuned algorithm is faster.

    The default is kept unless the measurements at neighboring sizes contradict it.
    """
    sizes = [nbytes for _, nbytes, _ in sweep.cases]

    def second_wins(i: int) -> bool:
        return better(times[1, i], times[0, i])

    def first_wins(i: int) -> bool:
        return better(times[0, i], times[1, i])

    if sweep.above:
        inside = [i for i, size in enumerate(sizes) if scale(size) >= default]
        outside = [i for i, size in enumerate(sizes) if scale(size) < default][::-1]
    else:
        inside = [i for i, size in enumerate(sizes) if scale(size) <= default][::-1]
        outside = [i for i, size in enumerate(sizes) if scale(size) > default]
    grown = default
    for i in outside:
        if not second_wins(i):
            break
        grown = scale(sizes[i])
    if grown != default:
        return grown
    for i in inside:
        if not first_wins(i):
            break
        # The tuned algorithm is slower at this size, so exclude the size from its range.
        grown = scale(sizes[i]) + 1 if sweep.above else max(scale(sizes[i]) - 1, 0)
    return grown


def candidate(sweep: Sweep, times: Times, default: int) -> int:
    """Return the best value that is faster than the default in at least one case and slower in none.

    If there is no such value, return the default.
    """
    if default not in sweep.values:
        return default
    base = sweep.values.index(default)
    cases = range(len(sweep.cases))

    def total(index: int) -> float:
        return sum(quantile([a / b for a, b in zip(times[index, i], times[base, i], strict=True)], 0.5) for i in cases)

    def acceptable(index: int) -> bool:
        return not any(better(times[base, i], times[index, i]) for i in cases) and any(
            better(times[index, i], times[base, i]) for i in cases
        )

    fitting = [index for index in range(len(sweep.values)) if index != base and acceptable(index)]
    best = min(fitting, key=total, default=base)
    return sweep.values[best]


def decide(sweep: Sweep, times: Times, default: int, node_of: Sequence[int]) -> int:
    """Return the value of the tuned setting, given the times measured in its sweep."""
    if len(sweep.values) > 2:
        return candidate(sweep, times, default)
    # The limit is measured with n ranks, but ``direct_bytes`` is the limit for two ranks (see allreduce_shm). With the
    # maximum value, the direct algorithm is always used.
    if sweep.name == "direct_bytes":
        return threshold(sweep, times, default, lambda size: min(size * len(node_of) // 2, sweep.values[1]))
    return threshold(sweep, times, default)


@dataclass(frozen=True)
class Outcome:
    """Result of the calibration. ``gains`` contains (default seconds, tuned seconds) for each case that changed."""

    tuning: dict[str, int]
    gains: dict[str, tuple[float, float]]
    seconds: float
    accepted: bool
    """True if all values together are faster than the defaults. If False, they should not be stored."""


class Calibration:
    """Calibration run by all ranks together. ``node_of`` maps each rank to its node."""

    def __init__(self, node_of: Sequence[int]) -> None:
        self._node_of = list(node_of)
        self._engines: dict[str, EngineColumn] = {}

    def run(self, after_setup: Callable[[], None] = lambda: None) -> Outcome:
        """Run the calibration. ``after_setup`` is called once the engines' threads exist, for example to pin them."""
        start = time.perf_counter()
        plan = sweeps(self._node_of)
        try:
            for sweep in plan:
                for value in sweep.values:
                    self._engine({sweep.name: value})
            after_setup()
            times = [self._measure([{sweep.name: v} for v in sweep.values], sweep.cases) for sweep in plan]
            defaults = _core.tuning()
            found = {s.name: decide(s, t, defaults[s.name], self._node_of) for s, t in zip(plan, times, strict=True)}
            tuning = broadcast_object({n: v for n, v in found.items() if v != defaults[n]}, 0, "calibrate.tuning")
            gains, accepted = self._check(tuning, plan, after_setup) if tuning else ({}, False)
            return Outcome(tuning, gains, time.perf_counter() - start, accepted)
        finally:
            for engine in self._engines.values():
                engine.stop()

    def _engine(self, tuning: dict[str, int]) -> EngineColumn:
        text = ",".join(f"{name}={value}" for name, value in tuning.items())
        if text not in self._engines:
            settings = {"HOROVOD_TUNING": text, "HOROVOD_CALIBRATE": "0"}
            self._engines[text] = EngineColumn(text or "defaults", settings, self._node_of)
        return self._engines[text]

    def _measure(self, tunings: Sequence[dict[str, int]], cases: Sequence[tuple[str, int, bool]]) -> Times:
        """Measure each tuning ``TURNS`` times in each case. Return the times of the slowest rank, on all ranks."""
        local: Times = {}
        engines = [self._engine(tuning) for tuning in tunings]
        for i, (collective, nbytes, in_place) in enumerate(cases):
            inner = max(1, min(20, MIB // nbytes // 2))
            case = Case(collective, nbytes, inner, 3)
            operations = [engine.prepare(case, in_place) for engine in engines]
            for turn in range(TURNS):
                order = range(len(engines)) if turn % 2 == 0 else range(len(engines) - 1, -1, -1)
                for index in order:
                    warm_up = 2 * inner if turn == 0 else 1
                    samples = timed(operations[index], engines[index].barrier, warm_up, case.samples, inner)
                    # Use the minimum, because other load on the machine can only add time.
                    local.setdefault((index, i), []).append(min(samples))
        by_rank: list[Times] = allgather_object(local, "calibrate.times")
        return {key: slowest([times[key] for times in by_rank]) for key in local}

    def _check(
        self, tuning: dict[str, int], plan: Sequence[Sweep], after_setup: Callable[[], None]
    ) -> tuple[dict[str, tuple[float, float]], bool]:
        self._engine({})
        self._engine(tuning)
        after_setup()
        cases = [case for sweep in plan if sweep.name in tuning for case in sweep.cases]
        times = self._measure([{}, tuning], cases)
        gains, ratios = {}, []
        for i, (collective, nbytes, in_place) in enumerate(cases):
            name = f"{collective} of {nbytes} bytes" + ("" if in_place else ", out of place")
            gains[name] = (quantile(times[0, i], 0.5), quantile(times[1, i], 0.5))
            ratios.append(quantile([a / b for a, b in zip(times[1, i], times[0, i], strict=True)], 0.5))
        worst, middle = max(ratios), quantile(ratios, 0.5)
        accepted = broadcast_object(
            worst < 1 + 2 * MARGIN and min(ratios) < 1 - MARGIN and middle <= 1, 0, "calibrate.ok"
        )
        return gains, accepted


# Least-squares fit of the cost model's parameters (core/plan/cost.h) to measured times.
#
# The formulas are linear in alpha, beta, gamma and their local counterparts, so this is a linear least-squares problem.
# Residuals are relative to the measured times, because otherwise the largest messages would dominate. Parameters are
# times, so they are constrained to be non-negative (C. Lawson, R. Hanson, Solving Least Squares Problems, 1974).
# Because there are so few unknowns, the solver can try all subsets of them. The input can include other collectives
# than allreduce. The model then predicts their times too.

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
"""Measurement: collective, algorithm, bytes, seconds."""


def fit(
    measured: Sequence[Measured],
    node_of: list[int],
    parameters: Sequence[str],
    predict: Callable[..., float] = _core.predict,
) -> dict[str, float]:
    """Fit the cost model parameters named in ``parameters``.

    All other parameters are assumed to be zero, so the measured algorithms must not depend on them.
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
    """Fit the parameters of the cost model. The result is the same on all ranks.

    Parameters of shared memory are measured with an engine in which all ranks share memory. Parameters of links are
    measured with one in which no ranks share memory. Parameters that no engine can measure keep their defaults.
    """
    parameters = dict(_core.cost_model())
    kinds = {len(set(engine.node_of)): engine for engine in engines}
    for nodes, engine in sorted(kinds.items()):
        if size == 1 or 1 < nodes < size:
            continue  # With several ranks per host, local and remote costs cannot be separated.
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
