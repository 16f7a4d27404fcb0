"""What rank 0 tells the launcher, about once a second, for the live page (`horovodrun --dashboard`), as data.

It takes the pipe of reports (``reasons``). Each message stands alone and says how things are, not what has changed: one
that finds no room is left out, and the next second tells the same again. Times in seconds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from horovod.common.contract.reasons import LIMIT

NAME = 100  # characters of a name that are told
_SENTENCE = 400
_WAITS = 20
_MISSING = 16


class Parts(msgspec.Struct, frozen=True, array_like=True):
    """Of a step; None: not measured. ``hidden`` lies beside the others, which are parts of ``step``."""

    step: float
    data: float | None = None
    compute: float | None = None
    exposed: float | None = None
    hidden: float | None = None


class Last(msgspec.Struct, frozen=True):
    """Who came last in most steps: in which share of them, and by how much then."""

    rank: int
    share: float
    seconds: float


class Overall(msgspec.Struct, frozen=True, tag="live-job"):
    """Of all ranks together. ``at``: when this was known, on rank 0's clock; ``made``: steps of the rank that has made
    most; ``own``: those of rank 0; ``lately``: since ranks told last; ``bandwidth``, ``link``: bytes a second in
    collectives, and what a link was measured to carry."""

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
    """Of one rank; ``share``, ``late``: of the steps in which it came last, and by how much then."""

    rank: int
    made: int
    parts: Parts | None = None
    share: float = 0.0
    late: float = 0.0


class Rows(msgspec.Struct, frozen=True, tag="live-ranks"):
    rows: list[Row]


class Value(msgspec.Struct, frozen=True, array_like=True):
    """What ranks have given to ``hvd.report`` under a name, None where that is no finite number: the mean, the least,
    the most, of how many ranks."""

    name: str
    mean: float | None
    least: float | None
    most: float | None
    ranks: int


class Values(msgspec.Struct, frozen=True, tag="live-values"):
    values: list[Value]


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """An operation that waits for ranks. ``lacking``: how many; ``missing``: the first of them."""

    name: str
    age: float
    ready: int
    lacking: int
    missing: list[int]


class Waits(msgspec.Struct, frozen=True, tag="live-waits"):
    """The oldest of ``total``; ``why``: the best guess why, if one was made."""

    total: int
    waits: list[Wait]
    why: str = ""


Message = Overall | Rows | Values | Waits
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def decode(line: bytes) -> Message | None:
    """None for what is no such message: whoever has the pipe's name can write to it."""
    try:
        return _decoder.decode(line)
    except (ValueError, RecursionError):
        return None


def encode(message: Message) -> bytes:
    """As it travels."""
    return msgspec.json.encode(message) + b"\n"


def of_job(job: Mapping[str, Any], at: float) -> Overall:
    """``job``: what ``Account.job`` knows."""
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
    """Of the same."""
    return [Row(r["rank"], r["made"], _parts(r), r["late"]["share"], r["late"]["seconds"]) for r in ranks]


def of_values(ranks: Iterable[Mapping[str, Any]]) -> list[Value]:
    """Of the same, by name."""
    told: dict[str, list[float]] = {}
    for rank in ranks:
        for name, value in rank["reported"].items():
            told.setdefault(_text(name, NAME), []).append(value)
    return [
        Value(name, _finite(sum(values) / len(values)), _finite(min(values)), _finite(max(values)), len(values))
        for name, values in told.items()
    ]


def of_waits(waiting: Sequence[Mapping[str, Any]], why: str) -> Waits:
    """``waiting``: as ``_core.Mailbox.take`` says."""
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
    """In as few messages as take them, none longer than LIMIT."""
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
    """What UTF-8 has characters for."""
    return words[:most].encode(errors="replace").decode()


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 7)


def _last(found: Mapping[str, Any] | None) -> Last | None:
    return None if found is None else Last(found["rank"], found["share"], found["seconds"])


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
