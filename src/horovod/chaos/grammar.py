"""Parser of HOROVOD_CHAOS and --chaos.

A plan is a list of entries. Each names a kind of fault, its target, and its step or time. Times are numbers with ms, s,
m or h. ``after=12s`` can replace ``step=``. The arguments of an entry can be in any order. The grammar is::

    plan      entry; entry; ...
    entry     kill rank=2 step=50               raise, exit (code=3, default 1) and preempt have the same form
              stop rank=1 step=80 for=3s
              slow link=0-2 by=5ms              optional: step= or after=, and for=
              cut host=h2 step=90               optional: for=
              seed=7 mtbf=30s                   random faults; optional: kinds=kill,stop and until=10m; cut and slow
                                                occur only if kinds= contains them
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from horovod.chaos.events import Event, Kind

# The code below generates random events, which depend only on the seed.

RANDOM_KINDS = (Kind.KILL, Kind.STOP, Kind.RAISE, Kind.EXIT, Kind.PREEMPT, Kind.CUT)
CHOICE = (*RANDOM_KINDS, Kind.SLOW)
"""Kinds of faults that the argument kinds= can contain."""
# Range of durations in seconds for which a rank is stopped or a host is disconnected. Some are shorter than heartbeat
# timeouts, and others longer.
STOPPED = (0.5, 30.0)
# Range of packet delays in seconds.
DELAYS = (0.001, 0.1)
# Decimal places of times and random picks. Values are rounded so that an event's text represents them exactly.
_DIGITS = 6


@dataclass(frozen=True)
class Seeded:
    """Generator of pseudorandom events.

    Attributes:
        seed: Seed of the generator.
        mtbf: Mean seconds between two events.
        kinds: Kinds to inject. By default all RANDOM_KINDS, where CUT events have no duration and therefore no effect.
        until: Seconds after which no more events occur. None means no limit.
    """

    seed: int
    mtbf: float
    kinds: tuple[Kind, ...] = ()
    until: float | None = None

    def events(self) -> Iterator[Event]:
        """Yield events in order of time. The intervals between them are exponentially distributed."""
        drawn = random.Random(self.seed)
        kinds = self.kinds or RANDOM_KINDS
        timed = {Kind.STOP, *self.kinds} & {Kind.STOP, Kind.CUT, Kind.SLOW}
        at = 0.0
        while True:
            # Draw the same numbers for every kind, so that event times do not depend on the selected kinds.
            wait, kind, pick, length = (drawn.random() for _ in range(4))
            at += -math.log(1.0 - wait) * self.mtbf
            if self.until is not None and at > self.until:
                return
            chosen = kinds[min(len(kinds) - 1, int(kind * len(kinds)))]
            yield Event(
                chosen,
                pick=round(pick, _DIGITS),
                after=round(at, _DIGITS),
                lasts=_between(STOPPED, length) if chosen in timed else None,
                by=_between(DELAYS, kind * len(kinds) % 1.0) if chosen is Kind.SLOW else None,
            )


def _between(bounds: tuple[float, float], part: float) -> float:
    low, high = bounds
    return round(low * math.pow(high / low, part), _DIGITS)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_HOST = re.compile(r"[\w.:%\[\]-]+")
_SEED = "seed"
_LARGEST = 10**12


@dataclass(frozen=True)
class _Form:
    """Required and optional arguments of a plan entry.

    If ``when`` is True, step= or after= is also required.
    """

    must: tuple[str, ...]
    may: tuple[str, ...] = ()
    when: bool = True


_FORMS = {
    Kind.KILL.value: _Form(("rank",)),
    Kind.RAISE.value: _Form(("rank",)),
    Kind.EXIT.value: _Form(("rank",), ("code",)),
    Kind.PREEMPT.value: _Form(("rank",)),
    Kind.STOP.value: _Form(("rank", "for")),
    Kind.CUT.value: _Form(("host",), ("for",)),
    Kind.SLOW.value: _Form(("link", "by"), ("step", "after", "for"), when=False),
    _SEED: _Form(("seed", "mtbf"), ("kinds", "until"), when=False),
}


@dataclass(frozen=True)
class Plan:
    """Faults to inject. ``seeded`` contains sources of random faults (see ``Seeded.events``)."""

    events: tuple[Event, ...] = ()
    seeded: tuple[Seeded, ...] = ()
    text: str = field(default="", compare=False)

    def __bool__(self) -> bool:
        return bool(self.events or self.seeded)

    def of_rank(self, rank: int) -> list[Event]:
        """Return the faults that a rank injects into itself at given steps, in the order of these steps."""
        own = [event for event in self.events if event.rank == rank and event.step is not None]
        return sorted(own, key=lambda event: event.step or 0)

    def by_time(self) -> Iterator[Event]:
        """Yield the timed faults in order. The sequence is endless if a source of random faults has no limit."""
        streams = [iter(sorted((e for e in self.events if e.after is not None), key=lambda e: e.after or 0.0))]
        streams += [one.events() for one in self.seeded]
        waiting = [(event.after or 0.0, number, event) for number, s in enumerate(streams) if (event := next(s, None))]
        while waiting:
            waiting.sort(key=lambda entry: entry[:2])
            _, number, event = waiting.pop(0)
            yield event
            if (following := next(streams[number], None)) is not None:
                waiting.append((following.after or 0.0, number, following))


def plan(text: str) -> Plan:
    """Parse the text of a plan. An empty text yields an empty plan.

    Raises:
        ValueError: If an entry is invalid. The message contains the entry and the accepted form.
    """
    events, seeded = [], []
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        made = _entry(entry)
        if isinstance(made, Seeded):
            seeded.append(made)
        else:
            events.append(made)
    return Plan(tuple(events), tuple(seeded), text)


def _entry(entry: str) -> Event | Seeded:
    words = entry.split()
    kind = _SEED if "=" in words[0] else words[0]
    form = _FORMS.get(kind)
    if form is None:
        raise _wrong(entry, f"must begin with one of {', '.join(_FORMS)}=, got {words[0]!r}")
    values: dict[str, str] = {}
    for word in words if kind == _SEED else words[1:]:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise _wrong(entry, f"{word!r} must have the form name=value")
        if name in values:
            raise _wrong(entry, f"{name} is given twice")
        values[name] = value
    accepted = [*form.must, *form.may, *(("step", "after") if form.when else ())]
    for name in values:
        if name not in accepted:
            raise _wrong(entry, f"{kind} has {', '.join(accepted)}, got {name}")
    for name in form.must:
        if name not in values:
            raise _wrong(entry, f"{name}= is missing")
    if "step" in values and "after" in values:
        raise _wrong(entry, "step and after are both given; give only one of them")
    if form.when and not {"step", "after"} & values.keys():
        raise _wrong(entry, "step= or after= is missing")
    return _seeded(entry, values) if kind == _SEED else _event(entry, Kind(kind), values)


def _event(entry: str, kind: Kind, values: dict[str, str]) -> Event:
    host = values.get("host")
    if host is not None and not _HOST.fullmatch(host):
        raise _wrong(entry, f"host must be the name of a host, got {host!r}")
    return Event(
        kind,
        rank=_number(entry, "rank", values),
        host=host,
        link=_link(entry, values["link"]) if "link" in values else None,
        step=_number(entry, "step", values),
        after=_time(entry, "after", values),
        lasts=_time(entry, "for", values),
        by=_time(entry, "by", values),
        code=_number(entry, "code", values, 1, 255),  # reject exit code 0, which would mean success
    )


def _seeded(entry: str, values: dict[str, str]) -> Seeded:
    names: Sequence[str] = values["kinds"].split(",") if "kinds" in values else []
    known = [kind.value for kind in CHOICE]
    for name in names:
        if name not in known:
            raise _wrong(entry, f"kinds must be of {', '.join(known)}, got {name!r}")
    seed, mtbf = _number(entry, "seed", values), _time(entry, "mtbf", values)
    assert seed is not None
    assert mtbf is not None
    return Seeded(seed, mtbf, tuple(Kind(name) for name in dict.fromkeys(names)), _time(entry, "until", values))


def _number(entry: str, name: str, values: dict[str, str], least: int = 0, maximum: int = _LARGEST) -> int | None:
    if name not in values:
        return None
    text = values[name]
    if not (text.isascii() and text.isdecimal()) or not least <= int(text) <= maximum:
        raise _wrong(entry, f"{name} must be an integer from {least} to {maximum}, got {text!r}")
    return int(text)


def _time(entry: str, name: str, values: dict[str, str]) -> float | None:
    if name not in values:
        return None
    if (seconds := parse_time(values[name])) <= 0:
        raise _wrong(entry, f"{name} must be a time above 0, such as 5ms, 3s or 10m, got {values[name]!r}")
    return seconds


def parse_time(text: str) -> float:
    """Parse a time and return it in seconds, or 0 if the text is invalid."""
    match = _TIME.fullmatch(text)
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


def _link(entry: str, text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)-(\d+)", text, re.ASCII)
    if match is None or match[1] == match[2]:
        raise _wrong(entry, f"link must be two different ranks, such as 0-2, got {text!r}")
    return int(match[1]), int(match[2])


def _wrong(entry: str, why: str) -> ValueError:
    return ValueError(f"chaos: {entry!r}: {why}")
