"""Training step statistics, computed from each rank's measurements.

Each rank sums up its own steps (``OwnSteps``) and reports periodically to rank 0. Rank 0 combines the reports
(``CombinedSteps``). A report contains running totals instead of differences, so the loss of a report is harmless. It
also contains a sample of at most ``SAMPLE`` single steps. From the samples, rank 0 finds the rank that came last.

**Which rank came last.** All ranks end a collective at the same time. The latest rank therefore waits least, and the
other ranks wait longer by its lateness. Comparing waiting times needs no common clock. Programs that run entirely
inside their framework do not allow measuring the wait. For these, the latest rank is the one that was last to submit
the final operation of a step. To compare times of different hosts, rank 0 estimates the offsets of their clocks and
ignores differences below the error of the estimate.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

SAMPLE = 32
"""Maximum number of single steps in a report."""
WARM_UP = 3
"""Number of first steps to ignore. They are slower because memory is allocated and schedules are computed."""
# A step is assumed to include a pause if it takes `_PAUSE` times as long as usual and at least `_LEAST_PAUSE` ns.
_PAUSE, _LEAST_PAUSE = 20, 500_000_000
# Number of recent steps from which the usual (median) length of a step is computed.
_REMEMBERED = 101
# Maximum number of sampled steps that wait for reports of other ranks.
_WAITING = 4096
# Approximate maximum number of stored reports about steps for which reports of other ranks are missing.
_MAX_SAMPLES = 1 << 16
# Number of recent comparisons that the statistics named "lately" cover.
_LATELY = 200
# A rank comes last significantly often if its count exceeds the expected one by this many standard deviations.
_MIN_DEVIATIONS = 3
# Minimum lateness that is considered significant, as a fraction of a step and in ns.
_LATE, _LEAST_LATE = 0.02, 50_000


# Importing the module `statistics` would make importing this package 50% slower.
def median(values: Iterable[float]) -> float:
    """Return the median of a non-empty collection."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def average(values: Collection[float]) -> float:
    """Return the mean of a non-empty collection."""
    return sum(values) / len(values)


class Step(NamedTuple):
    """One training step, as measured by the engine (``_core.Engine.take_steps``). Times are in ns."""

    number: int
    end: int
    time: int
    data: int
    blocked: int
    collectives: int
    hidden: int
    bytes: int
    moved: int
    operations: int
    tensors: int
    arrival: int
    unattended: int


@dataclass
class Sums:
    """Sums over one rank's steps, excluding pauses and the first steps. Times are in ns."""

    steps: int = 0
    time: int = 0
    data: int = 0
    blocked: int = 0
    collectives: int = 0
    hidden: int = 0
    bytes: int = 0
    moved: int = 0
    operations: int = 0
    tensors: int = 0
    unattended: int = 0
    pauses: int = 0
    paused: int = 0

    def add(self, steps: Sequence[Step]) -> None:
        """Add the measurements of ``steps`` to the sums."""
        self.steps += len(steps)
        for name, column in zip(Step._fields, zip(*steps, strict=True), strict=False):
            if name in _SUMMED:
                setattr(self, name, getattr(self, name) + sum(column))

    def since(self, before: "Sums") -> "Sums":
        """Return the differences between these sums and the earlier sums ``before``."""
        return Sums(*(now - then for now, then in zip(self.values(), before.values(), strict=True)))

    def values(self) -> list[int]:
        """Return the values of all fields, in field order."""
        return [getattr(self, name) for name in _FIELDS]


_FIELDS = [f.name for f in fields(Sums)]
_SUMMED = set(_FIELDS) & set(Step._fields)


class StepSample(NamedTuple):
    """One sampled step, as reported by a rank to rank 0. Times are in ns."""

    number: int
    time: int
    blocked: int
    """Time for which the step was blocked, or -1 if not measured."""
    arrival: int
    """Time of arrival on the clock of the rank's host, or 0 if unknown."""


def stride(steps: int) -> int:
    """Return the stride between sampled steps in a report about ``steps`` steps.

    A report samples steps whose numbers are multiples of the stride. Because the stride is a power of two, ranks with
    different strides still sample some common steps.
    """
    every = 1
    while steps > SAMPLE * every:
        every *= 2
    return every


class OwnSteps:
    """Accumulated measurements of this rank's steps."""

    def __init__(self) -> None:
        self.sums = Sums()
        self.completed = 0
        self.lengths: deque[int] = deque(maxlen=_REMEMBERED)

    def add(self, steps: Sequence[Step]) -> list[StepSample]:
        """Add the measurements of new steps to the sums, and return a sample of these steps for the report."""
        warm = [step for step in steps if step.number >= WARM_UP]
        known = [*self.lengths, *(step.time for step in warm)]
        long = max(_PAUSE * median(known), _LEAST_PAUSE) if len(known) >= 10 else float("inf")
        counted = [step for step in warm if step.time <= long]
        if steps:
            self.completed = steps[-1].number + 1
        self.sums.add(counted)
        self.sums.pauses += len(warm) - len(counted)
        self.sums.paused += sum(step.time for step in warm if step.time > long)
        self.lengths.extend(step.time for step in counted[-_REMEMBERED:])
        every = stride(len(steps))
        return [
            StepSample(s.number, s.time, -1 if s.unattended else s.blocked, s.arrival)
            for s in warm
            if s.number % every == 0
        ]


@dataclass
class Clock:
    """Offset of a host's clock: host time minus ``offset`` is rank 0's time, within ``error``. Both are in ns."""

    offset: int = 0
    error: int = 0


class Pings:
    """Estimator of a host's clock offset from round trips.

    The shortest round trip gives the most precise estimate. Only the last few round trips are used, because clocks
    drift.
    """

    def __init__(self) -> None:
        self._clocks: deque[Clock] = deque(maxlen=16)

    def add(self, sent_at: int, peer_time: int, received_at: int) -> Clock:
        """Add a round trip, and return the most precise estimate so far of the clock's offset.

        Args:
            sent_at: Time on rank 0, in ns, when rank 0 sent the question.
            peer_time: Time on the host, in ns, when the host answered.
            received_at: Time on rank 0, in ns, when the answer arrived.
        """
        self._clocks.append(Clock(peer_time - (sent_at + received_at) // 2, (received_at - sent_at + 1) // 2))
        return min(self._clocks, key=lambda clock: clock.error)


def last_arrivals(
    steps: Mapping[int, StepSample], hosts: Mapping[int, int], clocks: Mapping[int, Clock]
) -> tuple[int, int] | None:
    """Find the rank that arrived last in a step, and how late it was relative to the median of the other ranks.

    Args:
        steps: Reports of at least two ranks about the step, by rank.
        hosts: Host of each rank.
        clocks: Clocks by host. Times of a host without a clock are not compared with those of other hosts.

    Returns:
        (rank, lateness in ns), or None if no rank was late or the last rank cannot be determined.
    """
    least = max(_LATE * average([s.time for s in steps.values()]), _LEAST_LATE)
    if all(s.blocked >= 0 for s in steps.values()):
        key = {rank: -s.blocked for rank, s in steps.items()}
    else:
        if any(s.arrival == 0 for s in steps.values()):
            return None
        used = {hosts[rank] for rank in steps}
        if len(used) > 1:
            if not used <= set(clocks):
                return None
            least = max(least, sum(sorted(clocks[host].error for host in used)[-2:]))
        at = {host: clocks[host].offset if host in clocks else 0 for host in used}
        key = {rank: s.arrival - at[hosts[rank]] for rank, s in steps.items()}
    last = max(key, key=key.__getitem__)
    by = key[last] - median(value for rank, value in key.items() if rank != last)
    return (last, int(by)) if by >= least else None


@dataclass
class Lateness:
    """For each rank, the number of steps in which it came last, and its total lateness in ns."""

    size: int
    """Number of ranks of the job."""
    compared: int = 0
    times: dict[int, int] = field(default_factory=dict)
    by: dict[int, int] = field(default_factory=dict)

    def add(self, found: tuple[int, int] | None) -> None:
        """Add the comparison of one step. ``found`` is the result of ``last_arrivals`` for this step."""
        self.compared += 1
        if found is not None:
            rank, by = found
            self.times[rank] = self.times.get(rank, 0) + 1
            self.by[rank] = self.by.get(rank, 0) + by

    def of(self, rank: int) -> dict[str, float]:
        """Return the ``share`` of compared steps in which ``rank`` came last, and its mean delay in ``seconds``."""
        times = self.times.get(rank, 0)
        return {
            "share": times / self.compared if self.compared else 0.0,
            "seconds": self.by.get(rank, 0) / times * 1e-9 if times else 0.0,
        }

    def worst(self) -> int | None:
        """Return the rank that came last most often, or None if the result is not statistically significant.

        The null hypothesis is that every rank is equally likely to come last.
        """
        rank = max(self.times, key=lambda rank: (self.times[rank], -rank), default=None)
        late = sum(self.times.values())
        expected = late / self.size
        deviation = math.sqrt(expected * (1 - 1 / self.size))
        return rank if rank is not None and self.times[rank] > expected + _MIN_DEVIATIONS * deviation else None


class CombinedSteps:
    """Combined reports of all ranks, kept on rank 0."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sums: dict[int, Sums] = {}
        self.lately: dict[int, Sums] = {}
        self.completed: dict[int, int] = {}
        self.hosts: dict[int, int] = {}
        self.clocks: dict[int, Clock] = {}
        self.late = Lateness(size)
        self._lately: deque[tuple[int, int] | None] = deque(maxlen=_LATELY)
        self._waiting: OrderedDict[int, dict[int, StepSample]] = OrderedDict()

    def add(self, rank: int, host: int, completed: int, sums: Sums, sample: Iterable[StepSample]) -> None:
        """Add the report of one rank.

        Args:
            rank: Rank that sent the report.
            host: Host of the rank.
            completed: Number of steps that the rank has completed.
            sums: Sums over the rank's steps.
            sample: Some of the steps that the rank has completed since its last report.
        """
        before = self.sums.get(rank, Sums())
        if sums.steps > before.steps:
            self.lately[rank] = sums.since(before)
        self.sums[rank] = sums
        self.completed[rank] = completed
        self.hosts[rank] = host
        for step in sample:
            by_rank = self._waiting.setdefault(step.number, {})
            by_rank[rank] = step
            if len(by_rank) == self.size:
                del self._waiting[step.number]
                if self.size > 1:
                    found = last_arrivals(by_rank, self.hosts, self.clocks)
                    self.late.add(found)
                    self._lately.append(found)
        while len(self._waiting) > max(4 * SAMPLE, min(_WAITING, _MAX_SAMPLES // self.size)):
            self._waiting.popitem(last=False)

    def late_recently(self) -> Lateness:
        """Return the lateness of ranks in the most recently compared steps."""
        recent = Lateness(self.size)
        for found in self._lately:
            recent.add(found)
        return recent


def figures(sums: Sums, link: float | None = None, data_known: bool = True) -> dict[str, Any]:
    """Return one rank's means per step. Times are in seconds. Values that were not measured are None.

    Args:
        sums: Sums over the steps.
        link: Measured bandwidth of a link in bytes per second.
        data_known: True if the wait for data is measured.
    """
    if not sums.steps:
        return {"steps": 0, "pauses": sums.pauses, "paused_seconds": sums.paused * 1e-9}
    n = sums.steps
    step, collectives = sums.time / n * 1e-9, sums.collectives / n * 1e-9
    data = sums.data / n * 1e-9 if data_known or sums.data else None
    seen = not sums.unattended
    exposed = min(sums.blocked / n * 1e-9, step) if seen else None
    bandwidth = sums.moved / (sums.collectives * 1e-9) if sums.collectives and sums.moved else None
    return {
        "steps": n,
        "step_seconds": step,
        "data_seconds": data,
        "compute_seconds": None if exposed is None else max(step - exposed - (data or 0.0), 0.0),
        "exposed_seconds": exposed,
        "hidden_seconds": sums.hidden / n * 1e-9 if seen else None,
        "collective_seconds": collectives,
        "efficiency": None if exposed is None or not step else 1 - exposed / step,
        "bytes": sums.bytes / n,
        "operations": sums.operations / n,
        "tensors": sums.tensors / n,
        "bandwidth": bandwidth,
        "link_share": bandwidth / link if bandwidth and link else None,
        "pauses": sums.pauses,
        "paused_seconds": sums.paused * 1e-9,
    }


_FIGURES = list(figures(Sums(steps=1, time=1)))


def mean(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each statistic's mean over ranks, or None where a rank lacks the value."""
    counted = [r for r in ranks if r["steps"]]
    if not counted:
        return {"steps": 0}
    found: dict[str, Any] = {}
    for name in _FIGURES:
        values = [r[name] for r in counted]
        found[name] = None if any(v is None for v in values) else average(values)
    found["steps"] = max(r["steps"] for r in ranks)
    return found
