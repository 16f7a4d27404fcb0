"""Messages from rank 0 to the launcher, about once a second, for the live page (`horovodrun --dashboard`).

The messages use the pipe for reports (``reasons``). Each message is self-contained. If a message does not fit into the
pipe, it is dropped, and the message of the next second replaces it. Times are in seconds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from horovod.common.contract.reasons import LIMIT

NAME = 100  # maximum length of an operation name in characters
_SENTENCE = 400
_WAITS = 20
_MISSING = 16


class Parts(msgspec.Struct, frozen=True, array_like=True):
    """Parts of a step's time in seconds. A part is None if it was not measured.

    All parts except ``hidden``, which is communication during other parts, add up to ``step``.
    """

    step: float
    data: float | None = None
    compute: float | None = None
    exposed: float | None = None
    hidden: float | None = None


class Last(msgspec.Struct, frozen=True):
    """Rank that most often arrived last, the fraction of steps in which it did, and its lateness in seconds."""

    rank: int
    share: float
    seconds: float


class Overall(msgspec.Struct, frozen=True, tag="live-job"):
    """State of the whole job for the live page.

    Attributes:
        at: Time of the data, in seconds on rank 0's clock.
        made: Number of steps that the fastest rank has completed.
        own: Number of steps that rank 0 has completed.
        whole: Parts of a step, averaged over the whole job.
        lately: Parts of a step since the ranks' previous reports.
        bandwidth: Bandwidth that collectives reached, in bytes per second.
        link: Calibrated bandwidth of a link, in bytes per second.
        last: Rank that most often arrived last in the whole job.
        last_lately: Rank that most often arrived last since the previous reports.
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
    """State of one rank, for the live page.

    Attributes:
        rank: The rank.
        made: Number of steps that the rank has completed.
        parts: Parts of the rank's step time, or None if unknown.
        share: Fraction of steps in which the rank arrived last.
        late: Mean delay in seconds in these steps.
    """

    rank: int
    made: int
    parts: Parts | None = None
    share: float = 0.0
    late: float = 0.0


class Rows(msgspec.Struct, frozen=True, tag="live-ranks"):
    """States of several ranks, sent as one message."""

    rows: list[Row]


class Value(msgspec.Struct, frozen=True, array_like=True):
    """Mean, minimum and maximum of a value that ``ranks`` ranks reported under one name with ``hvd.report``.

    Numbers that are not finite are sent as None.
    """

    name: str
    mean: float | None
    minimum: float | None
    maximum: float | None
    ranks: int


class Values(msgspec.Struct, frozen=True, tag="live-values"):
    """Message with the values that ranks reported (``hvd.report``), summarized by name."""

    values: list[Value]


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """Operation that waits for ranks.

    ``lacking`` is the number of ranks that have not submitted the operation, and ``missing`` lists the first of them.
    """

    name: str
    age: float
    ready: int
    lacking: int
    missing: list[int]


class Waits(msgspec.Struct, frozen=True, tag="live-waits"):
    """The oldest of ``total`` waiting operations. ``why`` is the likely reason for the wait, or empty if unknown."""

    total: int
    waits: list[Wait]
    why: str = ""


Message = Overall | Rows | Values | Waits
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def decode(line: bytes) -> Message | None:
    """Decode a message from the pipe, or return None if it is invalid, because any process can write to the pipe."""
    try:
        return _decoder.decode(line)
    except (ValueError, RecursionError):
        return None


def encode(message: Message) -> bytes:
    """Encode a message as one line of JSON."""
    return msgspec.json.encode(message) + b"\n"


def of_job(job: Mapping[str, Any], at: float) -> Overall:
    """Create the live page message from job statistics (``Account.job``) that were collected at time ``at``."""
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
    """Create the state of each rank for the live page, from the ranks' statistics (``Account.job``)."""
    return [Row(r["rank"], r["made"], _parts(r), r["late"]["share"], r["late"]["seconds"]) for r in ranks]


def of_values(ranks: Iterable[Mapping[str, Any]]) -> list[Value]:
    """Summarize the values that ranks have reported, by name."""
    by_name: dict[str, list[float]] = {}
    for rank in ranks:
        for name, value in rank["reported"].items():
            by_name.setdefault(_text(name, NAME), []).append(value)
    return [
        Value(name, _finite(sum(values) / len(values)), _finite(min(values)), _finite(max(values)), len(values))
        for name, values in by_name.items()
    ]


def of_waits(waiting: Sequence[Mapping[str, Any]], why: str) -> Waits:
    """Create the message about operations that wait, from a result of ``_core.Mailbox.take``."""
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
    """Encode ranks' states and reported values in as few messages as possible, each of at most LIMIT bytes."""
    messages: list[bytes] = []
    for kind, items in ((Values, values), (Rows, rows)):
        begin = 0
        while begin < len(items):
            end = min(len(items), begin + 64)
            while len(line := encode(kind(list(items[begin:end])))) > LIMIT:  # type: ignore[arg-type]
                end = begin + max(1, (end - begin) * 3 // 4)
            messages.append(line)
            begin = end
    return messages


def _parts(figures: Mapping[str, Any]) -> Parts | None:
    if not figures["steps"]:
        return None
    names = ("step", "data", "compute", "exposed", "hidden")
    return Parts(*(_rounded(figures[f"{name}_seconds"]) for name in names))  # type: ignore[arg-type]


def _text(text: str, max_chars: int) -> str:
    """Truncate the text to ``max_chars`` characters, and drop characters that UTF-8 cannot encode."""
    return text[:max_chars].encode(errors="replace").decode()


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 7)


def _last(found: Mapping[str, Any] | None) -> Last | None:
    return None if found is None else Last(found["rank"], found["share"], found["seconds"])


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
