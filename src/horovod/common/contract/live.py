"""Messages for the live page (`horovodrun --dashboard`), which rank 0 sends to the launcher about once a second.

They use the pipe of reports (``reasons``). Each message is self-contained and describes the current state, not changes.
A message that does not fit into the pipe is dropped, and the next one a second later replaces it. Times are in seconds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from horovod.common.contract.reasons import LIMIT

NAME = 100  # maximum characters of a name in a message
_SENTENCE = 400
_WAITS = 20
_MISSING = 16


class Parts(msgspec.Struct, frozen=True, array_like=True):
    """Parts of a step's time; None: not measured. ``hidden`` overlaps the others, which add up to ``step``."""

    step: float
    data: float | None = None
    compute: float | None = None
    exposed: float | None = None
    hidden: float | None = None


class Last(msgspec.Struct, frozen=True):
    """Rank that came last most often: its fraction of the steps, and by how many seconds it was late."""

    rank: int
    share: float
    seconds: float


class Overall(msgspec.Struct, frozen=True, tag="live-job"):
    """State of the whole job for the live page.

    Attributes:
        at: Time of the data, on rank 0's clock.
        made: Steps of the rank that has made the most.
        own: Steps of rank 0.
        whole: Parts of a step, over the whole job.
        lately: Parts of a step since the previous reports of the ranks.
        bandwidth: Bytes per second in collectives.
        link: Measured bandwidth of a link.
        last: Rank that came last most often, over the whole job.
        last_lately: The same since the previous reports.
        sentence: Summary in one sentence.
    """

    at: float
    made: int
    own: int
    whole: Parts | None = None
    lately: Parts | None = None
    bandwidth: float | None = None
    link: float | None = None
    last: Last | None = None
    last_lately: Last | None = None
    sentence: str = ""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """State of one rank. ``share``: fraction of the steps in which it came last; ``late``: by how many seconds."""

    rank: int
    made: int
    parts: Parts | None = None
    share: float = 0.0
    late: float = 0.0


class Rows(msgspec.Struct, frozen=True, tag="live-ranks"):
    """States of several ranks in one message."""

    rows: list[Row]


class Value(msgspec.Struct, frozen=True, array_like=True):
    """Value reported by ``hvd.report`` under one name: mean, minimum and maximum over ``ranks`` ranks.

    A statistic is None if it is not a finite number.
    """

    name: str
    mean: float | None
    least: float | None
    most: float | None
    ranks: int


class Values(msgspec.Struct, frozen=True, tag="live-values"):
    """Values reported under several names."""

    values: list[Value]


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """Operation that waits for ranks. ``lacking``: number of missing ranks; ``missing``: the first of them."""

    name: str
    age: float
    ready: int
    lacking: int
    missing: list[int]


class Waits(msgspec.Struct, frozen=True, tag="live-waits"):
    """Oldest of ``total`` waiting operations. ``why``: the likely reason, if one was found."""

    total: int
    waits: list[Wait]
    why: str = ""


Message = Overall | Rows | Values | Waits
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def decode(line: bytes) -> Message | None:
    """Return the message, or None for an invalid one: any process that knows the pipe's name can write to it."""
    try:
        return _decoder.decode(line)
    except (ValueError, RecursionError):
        return None


def encode(message: Message) -> bytes:
    """Return the message as a line of JSON."""
    return msgspec.json.encode(message) + b"\n"


def of_job(job: Mapping[str, Any], at: float) -> Overall:
    """Return the message for the result ``job`` of ``Account.job`` at time ``at``."""
    lately = job["lately"]
    return Overall(
        at,
        max((rank["made"] for rank in job["ranks"]), default=0),
        next((rank["made"] for rank in job["ranks"] if rank["rank"] == 0), 0),
        _parts(job),
        _parts(lately),
        lately.get("bandwidth") or job.get("bandwidth"),
        job["link_bandwidth"],
        _last(job["last"]),
        _last(lately["last"]),
        _text(job["sentence"], _SENTENCE),
    )


def of_ranks(ranks: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the rows for the ranks in the result of ``Account.job``."""
    return [Row(r["rank"], r["made"], _parts(r), r["late"]["share"], r["late"]["seconds"]) for r in ranks]


def of_values(ranks: Iterable[Mapping[str, Any]]) -> list[Value]:
    """Return the values reported by the same ranks, by name."""
    told: dict[str, list[float]] = {}
    for rank in ranks:
        for name, value in rank["reported"].items():
            told.setdefault(_text(name, NAME), []).append(value)
    return [
        Value(name, _finite(sum(values) / len(values)), _finite(min(values)), _finite(max(values)), len(values))
        for name, values in told.items()
    ]


def of_waits(waiting: Sequence[Mapping[str, Any]], why: str) -> Waits:
    """Return the message for the waiting operations that ``_core.Mailbox.take`` returns."""
    oldest = sorted(waiting, key=lambda one: -one["age"])[:_WAITS]
    why = _text(why, _SENTENCE)
    waits = [
        Wait(_text(w["name"], NAME), w["age"], len(w["ready"]), len(w["missing"]), list(w["missing"])[:_MISSING])
        for w in oldest
    ]
    while len(encode(Waits(len(waiting), waits, why))) > LIMIT:
        waits.pop()
    return Waits(len(waiting), waits, why)


def packed(rows: Sequence[Row], values: Sequence[Value]) -> list[bytes]:
    """Encode rows and values in as few messages as possible, none longer than LIMIT bytes."""
    made: list[bytes] = []
    for kind, items in ((Values, values), (Rows, rows)):
        begin = 0
        while begin < len(items):
            end = min(len(items), begin + 64)
            while len(line := encode(kind(list(items[begin:end])))) > LIMIT:  # type: ignore[arg-type]
                end = begin + max(1, (end - begin) * 3 // 4)
            made.append(line)
            begin = end
    return made


def _parts(figures: Mapping[str, Any]) -> Parts | None:
    if not figures["steps"]:
        return None
    names = ("step", "data", "compute", "exposed", "hidden")
    return Parts(*(_rounded(figures[f"{name}_seconds"]) for name in names))  # type: ignore[arg-type]


def _text(words: str, most: int) -> str:
    """Return at most ``most`` characters, without those that UTF-8 cannot encode."""
    return words[:most].encode(errors="replace").decode()


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 7)


def _last(found: Mapping[str, Any] | None) -> Last | None:
    return None if found is None else Last(found["rank"], found["share"], found["seconds"])


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
