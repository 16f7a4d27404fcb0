"""Summary of a job's training steps in one line."""

from collections.abc import Mapping, Sequence
from typing import Any

# The summary names a rank only if it was the last to arrive in at least this fraction of steps.
_OFTEN = 0.5
# Smallest lateness of a rank that is reported, as a fraction of a step.
_LONG = 0.01
# The summary reports the bandwidth only if exposed communication takes at least this fraction of a step.
_SLOW = 0.1
# Shortest wait for data that is reported, as a fraction of a step.
_DATA = 0.1
# Steps shorter than this many seconds get no assessment, because system delays dominate them.
_SHORT = 0.001
# The summary mentions small operations if a step has at least _MANY operations that average at most _TINY bytes.
_MANY, _TINY = 20, 16384


def sentence(job: Mapping[str, Any], lag: float = 0.0) -> str:
    """Return the summary of a job's steps as one line.

    Args:
        job: Statistics of the job, as in ``hvd.stats()["job"]``.
        lag: Maximum age difference between ranks' reports, in seconds.
    """
    size, ranks = job["size"], job["ranks"]
    step = job.get("step_seconds")
    steps = max(rank["made"] for rank in ranks)
    if step and step < _SHORT and size > 1:
        return f"{_count(size, 'worker')}, {steps:,} steps of {milliseconds(step)}: too short to judge how they scale"
    head = [_count(size, "worker"), f"{steps:,} steps"]
    if job.get("efficiency") is not None and size > 1:
        head.append(f"{int(100 * job['efficiency'])}% of linear")
    if not step:
        return ", ".join(head)
    tiny = _tiny(job)
    exposed = _exposed(job, step, size) + ("" if tiny else _speed(ranks, step))
    parts = [", ".join(head), *_late(job, ranks, step), exposed, *_data(ranks, step), *tiny]
    parts += _uneven(ranks, steps, lag / step) + _pauses(job, ranks) + _noise(job, size)
    return "; ".join(parts)


def _exposed(job: Mapping[str, Any], step: float, size: int) -> str:
    if size == 1:
        return f"{milliseconds(step)} a step"
    if job["exposed_seconds"] is None:
        # In a framework's graph mode, the overlap of communication and computation is unknown.
        return f"{milliseconds(job['collective_seconds'])} of each {milliseconds(step)} step were communication"
    return f"{milliseconds(job['exposed_seconds'])} of each {milliseconds(step)} step were exposed communication"


def _speed(ranks: Sequence[Mapping[str, Any]], step: float) -> str:
    """Describe the lowest bandwidth of any rank, if communication took long and mostly consisted of transfers.

    Otherwise return "". The lowest value is used, because a rank that only sends overestimates its bandwidth: a
    transfer seems complete once the kernel has copied the data.
    """
    moved = [rank for rank in ranks if rank["steps"] and rank["bandwidth"] and rank["exposed_seconds"] is not None]
    if not moved:
        return ""
    rank = min(moved, key=lambda rank: rank["bandwidth"])
    exposed, speed = rank["exposed_seconds"], rank["bandwidth"]
    if exposed < _SLOW * step or rank["collective_seconds"] < exposed / 2:
        return ""
    share = rank["link_share"]
    of = f", {100 * share:.0f}% of what the link was measured to carry" if share else ""
    return f" ({_decimal(rank['collective_seconds'] * speed)} at {_decimal(speed)}/s{of})"


def _late(job: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], step: float) -> list[str]:
    last = job["last"]
    if last is None or last["share"] < _OFTEN or last["seconds"] < _LONG * step:
        return []
    text = f"rank {last['rank']} was last in {100 * last['share']:.0f}% of steps, by {milliseconds(last['seconds'])}"
    data = {rank["rank"]: rank.get("data_seconds") for rank in ranks if rank["steps"]}
    own = data.pop(last["rank"], None)
    others = sorted(value for value in data.values() if value is not None)
    if own is not None and others:
        longer = own - others[len(others) // 2]
        if longer > last["seconds"] / 2:
            text += f" (it waited {milliseconds(longer)} longer for its data)"
    return [text]


def _data(ranks: Sequence[Mapping[str, Any]], step: float) -> list[str]:
    waits = {rank["rank"]: rank.get("data_seconds") or 0.0 for rank in ranks}
    slowest = max(waits, key=waits.__getitem__)
    if waits[slowest] < _DATA * step:
        return []
    who = "every rank" if min(waits.values()) > 0.5 * waits[slowest] and len(waits) > 1 else f"rank {slowest}"
    return [f"{who} waited {milliseconds(waits[slowest])} of each step for data"]


def _tiny(job: Mapping[str, Any]) -> list[str]:
    each = job["bytes"] / job["operations"] if job["operations"] else 0
    exposed = job["exposed_seconds"]
    if job["operations"] < _MANY or each > _TINY or exposed is None or exposed < _DATA * job["step_seconds"]:
        return []
    return [f"each step has {job['operations']:.0f} operations of only {_bytes(each)}"]


def _uneven(ranks: Sequence[Mapping[str, Any]], steps: int, lag: float) -> list[str]:
    least = min(ranks, key=lambda rank: rank["made"])
    if least["made"] >= 0.99 * steps - 1 - lag:
        return []
    return [f"rank {least['rank']} made only {least['made']:,} steps"]


def _pauses(job: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    longest = max(ranks, key=lambda rank: rank["paused_seconds"])
    if longest["paused_seconds"] < 0.05 * longest["steps"] * job["step_seconds"]:
        return []
    return [f"beside them {longest['paused_seconds']:.1f} s in {_count(longest['pauses'], 'pause')} between steps"]


def _noise(job: Mapping[str, Any], size: int) -> list[str]:
    """Return advice on the number of workers, based on the gradient noise scale."""
    scale = job.get("noise_scale")
    if scale is None:
        return []
    workers = max(round(scale["workers"]), 1)
    about = f"about {round(workers, min(2 - len(str(workers)), 0)):,}"
    batch = "with this batch per worker" if scale["batch"] is None else f"batch {scale['batch']} per worker"
    if workers > size:
        return [f"{batch}: more workers help up to {about}"]
    return [f"{batch}: more workers than {about} help little"]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def milliseconds(seconds: float) -> str:
    """Format a time in milliseconds with at least two significant digits: "52 ms", "6.4 ms", "0.31 ms"."""
    ms = 1e3 * seconds
    if ms >= 9.95:
        return f"{ms:.0f} ms"
    return f"{ms:.1f} ms" if ms >= 0.995 else f"{ms:.2f} ms"


def _bytes(number: float) -> str:
    return f"{number / 1024:.0f} KiB" if number >= 1024 else f"{number:.0f} bytes"


def _decimal(number: float) -> str:
    """Format a number of bytes in decimal units, as in networking: "0.4 MB", "11 MB", "1.2 GB"."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= 0.1 * unit:
            value = number / unit
            return f"{value:.0f} {name}" if value >= 9.95 else f"{value:.1f} {name}"
    return f"{number:.0f} bytes"
