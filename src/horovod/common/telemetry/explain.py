"""Explain why a job is waiting, in one sentence and in a full report, from the collected facts."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from horovod.common.contract import reasons
from horovod.common.telemetry.facts import Facts, Rank, WaitingOperation, described, short

_REMEDY = {
    "stopped": "; `kill -CONT {pid}` on its host lets it go on",
    "debugger": "; it goes on when the debugger lets it (--debug-rank keeps the others from warning)",
    "swapping": "; it has too little memory",
    "gone": "",
    "silent": "",
    "blocked": "",
}
_SHOWN = 6
# Tolerance in seconds when the start times of two waits are compared, because ranks answer with a delay.
_SAME_WAIT = 2.0


def ranks_text(ranks: Sequence[int]) -> str:
    """Format a list of ranks, such as "rank 3", "ranks 0 and 1" or "ranks 1-3, 5"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    runs = reasons.runs(ranks)
    return "ranks " + ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs)


def operation_text(facts: Facts, one: WaitingOperation) -> str:
    """Describe an operation by kind and name, such as "allreduce 'grad.0'"."""
    for rank in one.ready:
        entry = facts.ranks[rank].entry(one.name) if rank in facts.ranks else None
        if entry is not None:
            return described(entry["kind"], one.name)
    return described("", one.name)


class Guess(NamedTuple):
    """Most likely reason why a job is waiting."""

    knows: int
    """Level of information in the guess.

    0: none, 1: which rank is missing, 2: what that rank does, 3: which calls differ, 4: the cause.
    """
    text: str
    """Reason as one sentence without a full stop."""


def guess(facts: Facts) -> Guess:
    """Return the most likely reason why a job is waiting."""
    missing = _missing(facts)
    return (
        _not_running(facts, missing)
        or _finished_early(facts)
        or _waiting_for_each_other(facts)
        or _elsewhere(facts, missing)
        or Guess(0, "no operation waits for any rank")
    )


def same_wait(before: Facts, now: Facts) -> bool:
    """Return True if the job still waits for the same operation.

    The result is True if the operation that waits longest in ``now`` was already waiting in ``before``.
    """
    if not now.stalled:
        return False
    oldest = now.stalled[0]
    begun = now.at - oldest.age
    return any(
        (one.name, one.set) == (oldest.name, oldest.set) and abs(before.at - one.age - begun) < _SAME_WAIT
        for one in before.stalled
    )


def _missing(facts: Facts) -> list[int]:
    """Return the missing ranks, with the likeliest causes first.

    Ranks that hold up the oldest operations come first. Ranks that are themselves waiting come last, because they
    cannot be the cause. For example, a join waits for all ranks that continue, and all of these can be waiting for one
    rank.
    """
    found = dict.fromkeys(facts.suspects)
    for one in facts.stalled:
        found.update(dict.fromkeys(one.missing))
    waits = _who_waits(facts)
    return sorted(found, key=lambda rank: rank in waits)


def _who_waits(facts: Facts) -> set[int]:
    return {rank for one in facts.waiting for rank in one.ready} - set(facts.suspects)


def _not_running(facts: Facts, missing: Iterable[int]) -> Guess | None:
    """Return an explanation if the process of a missing rank cannot continue, for example because it is stopped."""
    silent = []
    for rank in missing:
        known = facts.ranks.get(rank)
        if known is None:
            continue
        word, text = known.condition
        if word == "silent":
            silent.append(rank)
        elif word in _REMEDY:
            where = f", {known.place}" if known.place else ""
            return Guess(2, f"rank {rank} does not go on: {text}{where}{_REMEDY[word].format(pid=known.pid)}")
    if silent and not any(facts.ranks[rank].responded for rank in missing if rank in facts.ranks):
        hosts = sorted({facts.ranks[rank].host for rank in silent})
        return Guess(
            1,
            f"{ranks_text(silent)} on {', '.join(hosts) or 'an unknown host'} cannot be reached: is the host, or the "
            "network to it, still there?",
        )
    return None


def _finished_early(facts: Facts) -> Guess | None:
    """Return an explanation if a missing rank's data loader has fewer batches than another rank's, or None."""
    for one in facts.stalled:
        for rank in one.missing:
            for other in one.ready:
                batches = _fewer(facts.ranks.get(rank), facts.ranks.get(other))
                if batches is not None:
                    mine, theirs = batches
                    early = theirs - mine
                    return Guess(
                        4,
                        f"rank {rank} finished its epoch {early} {'batch' if early == 1 else 'batches'} earlier: its "
                        f"data loader has {mine} batches, that of rank {other} {theirs}; give all ranks equally many, "
                        f"or call hvd.join() after the loop",
                    )
    return None


def _fewer(rank: Rank | None, other: Rank | None) -> tuple[int, int] | None:
    """Return both ranks' batch counts if ``other`` has read more batches than the loader of ``rank`` contains.

    Loaders whose length is the same on both ranks, for example for validation, are ignored.
    """
    if rank is None or other is None:
        return None
    mine, theirs = (set(one.loaders.get("lengths", [])) for one in (rank, other))
    going_on = {of for given, of in rank.loaders.get("live", []) if given < of}
    for given, of in other.loaders.get("live", []):
        for length in sorted(mine - theirs - going_on, reverse=True):
            if length < given <= of and of not in mine | going_on:
                return length, of
    return None


def _waiting_for_each_other(facts: Facts) -> Guess | None:
    """Return an explanation if two groups of ranks wait in different operations, each for the other group."""
    for one in facts.stalled:
        for other in facts.waiting:
            here = [rank for rank in one.ready if rank in other.missing]
            there = [rank for rank in other.ready if rank in one.missing]
            if here and there and one.set == other.set:
                return _crossed(facts, one, other, here, there)
    return None


def _crossed(facts: Facts, one: WaitingOperation, other: WaitingOperation, here: list[int], there: list[int]) -> Guess:
    if len(here) > len(there):
        one, other, here, there = other, one, there, here
    first, second = operation_text(facts, one), operation_text(facts, other)
    at_first, at_second = _at(facts, here), _at(facts, there)
    they_know, we_know = _knows(facts, there, one.name), _knows(facts, here, other.name)
    if they_know and we_know:
        pair = ranks_text(sorted([here[0], there[0]]))
        names = " and ".join(short(name) for name in (one.name, other.name))
        barrier = ", one of them a barrier" if "barrier" in first + second else ""
        return Guess(
            4,
            f"{pair} submit {names} in different order{barrier}: rank {here[0]} is at {first}{at_first}, rank "
            f"{there[0]} at {second}{at_second}",
        )
    if they_know:
        return Guess(4, _progress_text(there, second + at_second, here, first + at_first))
    if we_know:
        return Guess(4, _progress_text(here, first + at_first, there, second + at_second))
    if len(here) == 1 and len(there) > 1:
        return Guess(
            3,
            f"rank {here[0]} alone calls {first}{at_first}, {ranks_text(there)} call {second}{at_second}: is one of "
            "them under a condition that holds on some ranks only?",
        )
    backward = all(_in_backward(facts.ranks.get(rank)) for rank in (here[0], there[0]))
    why = (
        "both within backward(): are there parameters that only some ranks use?"
        if backward
        else "they have taken different branches, or submit the same operations in different order"
    )
    return Guess(
        3,
        f"{ranks_text(sorted([*here, *there]))} wait for each other: "
        f"{first} is called by {ranks_text(here)}{at_first}, {second} by {ranks_text(there)}{at_second}; {why}",
    )


def _in_backward(rank: Rank | None) -> bool:
    """Return True if the rank is in PyTorch's backward pass (inside a gradient hook)."""
    frames = rank.main.frames if rank is not None and rank.main is not None else ()
    return any(frame.library == "torch" and "/autograd/" in frame.path for frame in frames)


def _progress_text(ahead: Sequence[int], there: str, behind: Sequence[int], here: str) -> str:
    """Describe two groups of ranks that wait in different operations.

    One group probably left a loop early or took a different branch. It is ahead: it has already submitted the operation
    in which the other group waits. The other group has never submitted the operation in which the first group waits.
    """
    call, others = "calls" if len(ahead) == 1 else "call", "calls" if len(behind) == 1 else "call"
    have = "has" if len(ahead) == 1 else "have"
    return (
        f"{ranks_text(ahead)} {call} {there}, while {ranks_text(behind)} {others} {here} as all did before: {have} "
        f"{ranks_text(ahead)} fewer batches, or is one of the calls under a condition that holds on some ranks only?"
    )


def _knows(facts: Facts, ranks: Iterable[int], name: str) -> bool:
    """Return True if any of the ranks has submitted the operation before.

    The result can be wrong for an operation that was fused and recorded under another operation's name. It is always
    False for unnamed operations, because each call gets a new number.
    """
    return any(facts.ranks[rank].entry(name) is not None for rank in ranks if rank in facts.ranks)


def _at(facts: Facts, ranks: Sequence[int]) -> str:
    known = facts.ranks.get(ranks[0])
    if known is None or known.main is None or known.main.own is None:
        return ""
    return f" ({known.main.frames[known.main.own]})"


def _elsewhere(facts: Facts, missing: Sequence[int]) -> Guess | None:
    """Return an explanation that states where in the program the missing ranks are."""
    places: dict[str, list[int]] = {}
    waits = _who_waits(facts)
    missing = [rank for rank in missing if rank not in waits] or missing
    for rank in missing:
        known = facts.ranks.get(rank)
        if known is not None and known.place:
            held = ", in code that holds Python's interpreter lock" if known.condition[0] == "locked" else ""
            places.setdefault(known.place + held, []).append(rank)
    if not places:
        return Guess(1, f"{ranks_text(list(missing))} did not submit what the others wait for") if missing else None
    text, ranks = next(iter(places.items()))
    return Guess(2, f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} {text}")


def summary(facts: Facts, why: str, where: str) -> str:
    """Return the text that the terminal shows about a waiting job.

    Args:
        facts: Facts about the waiting job.
        why: Sentence that explains why the job is waiting.
        where: Path of the file with the full report.
    """
    lines = [f"why the job waits: {why}"]
    for one in facts.stalled[:_SHOWN]:
        lines.append(f"  {operation_text(facts, one)} waits {one.age:.0f} s for {ranks_text(one.missing)}")
    if len(facts.stalled) > _SHOWN:
        lines.append(f"  and {len(facts.stalled) - _SHOWN} more operations")
    for rank in _missing(facts)[:_SHOWN]:
        if rank in facts.ranks:
            lines.append(f"  {_line(facts, facts.ranks[rank])}")
    if where:
        lines.append(f"  stacks of all threads and the last operations: {where}")
    return "\n".join(lines)


def _line(facts: Facts, rank: Rank) -> str:
    where = f"; {rank.place}" if rank.place else ""
    made = f"; {rank.steps} steps{_behind(facts, rank)}" if rank.steps else ""
    return f"{rank.label}: {rank.condition[1]}{where}{made}"


def report(facts: Facts, why: str, when: str) -> str:
    """Return the full report on a waiting job.

    Args:
        facts: Facts about the waiting job.
        why: Sentence that explains why the job is waiting.
        when: Date and time of the report.
    """
    lines = [f"{when}: {why}.", ""]
    if facts.unnoticed:
        lines += [facts.unnoticed, ""]
    lines.append(
        "Operations that wait" + ("" if facts.on_request else " for long") + ":" if facts.stalled else "Nothing waits."
    )
    for one in facts.stalled:
        lines.append(
            f"  {operation_text(facts, one)}{f', process set {one.set}' if one.set else ''}: for {one.age:.1f} s; "
            f"submitted by {ranks_text(one.ready) if one.ready else 'no rank'}, missing on {ranks_text(one.missing)}"
        )
    rest = [one for one in facts.waiting if one.name not in {stalled.name for stalled in facts.stalled}]
    if rest:
        lines.append("Operations that wait for a shorter time:")
    for one in rest:
        lines.append(f"  {operation_text(facts, one)}: submitted by {ranks_text(one.ready)}")
    first = [rank for rank in _missing(facts) if rank in facts.ranks]
    for rank in [*first, *(rank for rank in sorted(facts.ranks) if rank not in first)]:
        lines += ["", *_about(facts, facts.ranks[rank], rank in first)]
    if len(facts.ranks) < facts.size:
        lines += ["", f"The other {facts.size - len(facts.ranks)} ranks were not asked."]
    return "\n".join(lines) + "\n"


def _about(facts: Facts, rank: Rank, missing: bool) -> list[str]:
    lines = [f"== {rank.label}{', which is waited for' if missing else ''}", f"  state: {rank.condition[1]}"]
    if rank.steps:
        lines.append(f"  steps made: {rank.steps}{_behind(facts, rank)}")
    last = rank.last_finished
    if last is not None:
        lines.append(f"  last finished: {_entry(last)}, {rank.age(last):.1f} s ago")
    mine = [operation_text(facts, one) for one in facts.waiting if rank.rank in one.ready]
    lines.append(f"  submitted and waiting: {', '.join(mine) if mine else 'nothing'}")
    if not rank.responded:
        zero = facts.ranks.get(0)
        finished = zero.last_finished if zero is not None else None
        if zero is not None and finished is not None:
            lines.append(f"  last heard of {zero.age(finished):.1f} s ago, by the last operation that all carried out")
        lines.append("  it did not answer; its state was seen " + ("from its host" if rank.looked_at else "by no rank"))
    if rank.place:
        lines.append(f"  main thread: {rank.place}")
    if rank.forced:
        lines.append("  its Python did not run for a second; these stacks were taken from outside of it")
    for thread in rank.threads:
        if thread.is_telemetry:
            continue
        lines.append("  main thread:" if thread is rank.main else f"  thread {thread.ident:#x}:")
        own = thread.own
        for index, frame in enumerate(thread.frames):
            source = rank.source.get(f"{frame.path}:{frame.line}", "")
            mark = "->" if index == own else "  "
            lines.append(
                f"  {mark} {frame.path}:{frame.line} in {frame.function}" + (f"    {source}" if source else "")
            )
    if rank.recent:
        lines.append("  last operations, newest first:")
        lines += [
            f"    {rank.age(entry):8.2f} s ago  {entry['what']:<13} {_entry(entry)}"
            for entry in reversed(rank.recent[-20:])
        ]
    return lines


def _behind(facts: Facts, rank: Rank) -> str:
    most = max(other.steps for other in facts.ranks.values())
    return f", {most - rank.steps} fewer than others" if rank.steps < most else ""


def _entry(entry: dict[str, Any]) -> str:
    if entry["what"] in ("schedule begun", "schedule ended"):
        return ""
    if entry["what"] == "ended":
        return str(entry["name"])
    shape = ", ".join(map(str, entry["shape"])) + (", ..." if entry["dimensions"] > len(entry["shape"]) else "")
    more = f" and {entry['count'] - 1} more" if entry["count"] > 1 else ""
    return f"{described(entry['kind'], entry['name'])}{more} ({entry['dtype']}[{shape}])"
