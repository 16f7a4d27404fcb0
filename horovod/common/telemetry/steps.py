"""Where steps of training spend their time, pure: from what each rank measures of its steps to figures of the job.

A rank sums up its own steps (``Own``) and tells rank 0 now and then (``Own.note``); rank 0 puts together what it is
told (``Together``). Sums since the start travel, not differences, so a note that is lost costs nothing; beside them go
single steps, a sample of at most ``SAMPLE`` a note, from which rank 0 sees who came last.

**Who came last.** Whoever is late waits least: all ranks end a collective together, so what one of them comes later,
the others wait longer. The difference between waiting times needs no common clock. Where waiting is not seen (programs
that run as a whole within their framework), it is the order in which ranks submitted the last operation of the step;
clocks of different hosts are compared only as exactly as they are known.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

SAMPLE = 32
"""Steps that a note tells of one by one, at most."""
WARM_UP = 3
"""First steps, which are none like the others: memory is touched for the first time, schedules are found."""
# A step so many times as long as others, and so many ns, has something else in it.
_PAUSE, _LEAST_PAUSE = 20, 500_000_000
_REMEMBERED = 101  # steps from which the usual length is found
_WAITING = 4096  # sampled steps that some rank has not told of yet
_TOLD = 1 << 16  # what ranks have told of these, about: some ranks may never tell of any
_LATELY = 200  # compared steps that "lately" means
_BEYOND_CHANCE = 3  # standard deviations
_LATE, _LEAST_LATE = 0.02, 50_000  # of a step, ns: less is nobody's fault


# The module `statistics` takes as long to import as half of what a worker needs of us.
def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def average(values: Collection[float]) -> float:
    return sum(values) / len(values)


class Step(NamedTuple):
    """As ``_core.Engine.take_steps`` gives it. Times in ns."""

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
    """Of the steps of one rank, without pauses and the first ones. Times in ns."""

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
        self.steps += len(steps)
        for name, column in zip(Step._fields, zip(*steps, strict=True), strict=False):
            if name in _SUMMED:
                setattr(self, name, getattr(self, name) + sum(column))

    def since(self, before: "Sums") -> "Sums":
        return Sums(*(now - then for now, then in zip(self.values(), before.values(), strict=True)))

    def values(self) -> list[int]:
        """In the order of the fields."""
        return [getattr(self, name) for name in _FIELDS]


_FIELDS = [f.name for f in fields(Sums)]
_SUMMED = set(_FIELDS) & set(Step._fields)


class Sampled(NamedTuple):
    """A step as rank 0 hears of it. Times in ns."""

    number: int
    time: int
    blocked: int
    """-1: not seen."""
    arrival: int
    """On the clock of its host; 0: unknown."""


def stride(steps: int) -> int:
    """A note about so many steps tells of each step whose number is a multiple of this. A power of two, so that ranks
    that see different numbers of steps choose steps in common."""
    every = 1
    while steps > SAMPLE * every:
        every *= 2
    return every


class Own:
    """This rank's steps."""

    def __init__(self) -> None:
        self.sums = Sums()
        self.made = 0
        self.lengths: deque[int] = deque(maxlen=_REMEMBERED)

    def add(self, steps: Sequence[Step]) -> list[Sampled]:
        """Counts them. Returns the sample."""
        warm = [step for step in steps if step.number >= WARM_UP]
        known = [*self.lengths, *(step.time for step in warm)]
        long = max(_PAUSE * median(known), _LEAST_PAUSE) if len(known) >= 10 else float("inf")
        counted = [step for step in warm if step.time <= long]
        if steps:
            self.made = steps[-1].number + 1
        self.sums.add(counted)
        self.sums.pauses += len(warm) - len(counted)
        self.sums.paused += sum(step.time for step in warm if step.time > long)
        self.lengths.extend(step.time for step in counted[-_REMEMBERED:])
        every = stride(len(steps))
        return [
            Sampled(s.number, s.time, -1 if s.unattended else s.blocked, s.arrival)
            for s in warm
            if s.number % every == 0
        ]


@dataclass
class Clock:
    """Of a host, against rank 0's: its reading minus ``offset`` is rank 0's, within ``error``. In ns."""

    offset: int = 0
    error: int = 0


class Pings:
    """What is known of a host's clock: each question and answer shows it as exactly as they were fast. The last few of
    them count, since clocks drift."""

    def __init__(self) -> None:
        self._clocks: deque[Clock] = deque(maxlen=16)

    def add(self, asked: int, theirs: int, answered: int) -> Clock:
        """Asked and answered at these times of rank 0, at ``theirs`` of the host: what is known by now."""
        self._clocks.append(Clock(theirs - (asked + answered) // 2, (answered - asked + 1) // 2))
        return min(self._clocks, key=lambda clock: clock.error)


def came_last(
    steps: Mapping[int, Sampled], hosts: Mapping[int, int], clocks: Mapping[int, Clock]
) -> tuple[int, int] | None:
    """The rank that came last in one step, which two or more of them have told of, and by how much ns it came later
    than the middle one of the others. None: nobody was late, or it cannot be known.

    ``hosts``: of the ranks. ``clocks``: of hosts; those that are missing cannot be compared with others.
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
    """How often which rank came last, and by how much ns in all."""

    size: int
    """Ranks of the job."""
    compared: int = 0
    times: dict[int, int] = field(default_factory=dict)
    by: dict[int, int] = field(default_factory=dict)

    def add(self, found: tuple[int, int] | None) -> None:
        self.compared += 1
        if found is not None:
            rank, by = found
            self.times[rank] = self.times.get(rank, 0) + 1
            self.by[rank] = self.by.get(rank, 0) + by

    def of(self, rank: int) -> dict[str, float]:
        """``share`` of the compared steps in which it came last, and by how many ``seconds`` then."""
        times = self.times.get(rank, 0)
        return {
            "share": times / self.compared if self.compared else 0.0,
            "seconds": self.by.get(rank, 0) / times * 1e-9 if times else 0.0,
        }

    def worst(self) -> int | None:
        """Return the rank that came last most often; None unless that is more often than chance explains.

        Were all ranks alike, each late step would be the fault of any of them, with the same probability.
        """
        rank = max(self.times, key=lambda rank: (self.times[rank], -rank), default=None)
        late = sum(self.times.values())
        expected = late / self.size
        deviation = math.sqrt(expected * (1 - 1 / self.size))
        return rank if rank is not None and self.times[rank] > expected + _BEYOND_CHANCE * deviation else None


class Together:
    """Rank 0: what the ranks have told."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sums: dict[int, Sums] = {}
        self.lately: dict[int, Sums] = {}
        self.made: dict[int, int] = {}
        self.hosts: dict[int, int] = {}
        self.clocks: dict[int, Clock] = {}
        self.late = Lateness(size)
        self._lately: deque[tuple[int, int] | None] = deque(maxlen=_LATELY)
        self._waiting: OrderedDict[int, dict[int, Sampled]] = OrderedDict()

    def add(self, rank: int, host: int, made: int, sums: Sums, sample: Iterable[Sampled]) -> None:
        """What ``rank`` of a host tells: steps that it has made, their sums, and some of those since it last told."""
        before = self.sums.get(rank, Sums())
        if sums.steps > before.steps:
            self.lately[rank] = sums.since(before)
        self.sums[rank] = sums
        self.made[rank] = made
        self.hosts[rank] = host
        for step in sample:
            told = self._waiting.setdefault(step.number, {})
            told[rank] = step
            if len(told) == self.size:
                del self._waiting[step.number]
                if self.size > 1:
                    found = came_last(told, self.hosts, self.clocks)
                    self.late.add(found)
                    self._lately.append(found)
        while len(self._waiting) > max(4 * SAMPLE, min(_WAITING, _TOLD // self.size)):
            self._waiting.popitem(last=False)

    def late_recently(self) -> Lateness:
        recent = Lateness(self.size)
        for found in self._lately:
            recent.add(found)
        return recent


def figures(sums: Sums, link: float | None = None, data_known: bool = True) -> dict[str, Any]:
    """Means of a rank's steps, times in seconds; None where something is not measured.

    ``link``: bytes a second that a link was measured to carry. ``data_known``: is waiting for data seen?
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
    """Of the ``figures`` of ranks; None where one of them has none."""
    counted = [r for r in ranks if r["steps"]]
    if not counted:
        return {"steps": 0}
    found: dict[str, Any] = {}
    for name in _FIGURES:
        values = [r[name] for r in counted]
        found[name] = None if any(v is None for v in values) else average(values)
    found["steps"] = max(r["steps"] for r in ranks)
    return found
