"""Decision about which rank's state all ranks take after a failure, based on what each rank reports of its state. Pure.

A rank is *whole* if its failure hit the reduction of gradients. It is then just before an optimizer step: the program
has completed the previous step, and the current one has changed nothing yet. So training can continue from what the
rank holds, and the step is repeated. A rank is also whole if the failure hit ``check_host_updates``, where the program
is ready to hand over its state anyway. If the failure hit something else (for example a metric between the step and the
counter of batches), it is unknown how far the program had come. Such a rank can only offer its last commit.

Ranks differ by at most one step, because a collective may have succeeded on some ranks and failed on others. The ranks
that are a step ahead hold what the others would have computed. So all ranks take the state of the furthest whole rank,
and no step is lost.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Standing:
    """Progress of one rank's state.

    Attributes:
        steps: Training steps it includes, in all epochs of the job.
        whole: True if training can continue from what the rank holds.
        commits: Number of commits.
        new: True for a rank that has no state to offer; its numbers are 0.
        updates: Optimizer steps; several may make up one training step.
    """

    steps: int = 0
    whole: bool = False
    commits: int = 0
    new: bool = True
    updates: int = 0


@dataclass(frozen=True)
class Outcome:
    """Decision about the state that all ranks take.

    Attributes:
        root: Rank whose state all ranks take.
        restore: True to take its last commit instead of what it holds now.
        lost: Number of steps that must be repeated. 0 when a commit is restored, because steps since then are not
            counted.
    """

    root: int
    restore: bool
    lost: int = 0


def decide(standings: Sequence[Standing]) -> Outcome:
    """Return whose state to take; the same on all ranks. ``standings`` is by rank."""
    known = [(rank, one) for rank, one in enumerate(standings) if not one.new]
    if not known:
        return Outcome(0, False)
    whole = [(rank, one) for rank, one in known if one.whole]
    if whole:
        root, best = max(whole, key=lambda entry: (entry[1].updates, entry[1].steps, -entry[0]))
        return Outcome(root, False, max(one.steps for _, one in known) - best.steps)
    root, _ = max(known, key=lambda entry: (entry[1].commits, -entry[0]))
    return Outcome(root, True)


def holder(new: Sequence[bool]) -> int:
    """Return the rank whose state all take if ranks only report whether they are new.

    It is the first rank that is not new, or rank 0 if all are new because the job begins.
    """
    return next((rank for rank, one in enumerate(new) if not one), 0)


class Mismatch(NamedTuple):
    """Reason why the ranks' states do not match.

    Attributes:
        why: Description of the difference.
        mine: True if this rank is one of those with the wrong state.
    """

    why: str
    mine: bool


def find_mismatch(told: Sequence[tuple[Sequence[str], bool]], rank: int) -> Mismatch | None:
    """Return how the ranks' states differ, or None if they match.

    Ranks that differ from the one that holds the training state (``holder``) are wrong, and the others can continue
    without them. If all ranks are new, all are considered wrong.

    Args:
        told: By rank: attribute names, and whether the rank is new.
        rank: This rank.
    """
    root = holder([new for _, new in told])
    difference = compare_names([names for names, _ in told], root)
    if not difference:
        return None
    return Mismatch(difference, told[root][1] or set(told[rank][0]) != set(told[root][0]))


def signature(tensors: Iterable[tuple[Sequence[int], object]]) -> str:
    """Return a digest of shapes and dtypes in order; equal digests mean that broadcasts match."""
    shown = [f"{list(shape)} {dtype}" for shape, dtype in tensors]
    return f"{len(shown)} tensors, {hashlib.sha256(' '.join(shown).encode()).hexdigest()[:8]}"


def check_shapes(here: Sequence[tuple[int, ...]], loaded: Sequence[tuple[int, ...]]) -> None:
    """Raise ValueError if the shapes of a checkpoint's variables differ from those of the state."""
    if len(here) != len(loaded):
        raise ValueError(f"what is loaded has {len(loaded)} variables, this state {len(here)}")
    for number, (mine, theirs) in enumerate(zip(here, loaded, strict=True)):
        if mine != theirs:
            raise ValueError(
                f"variable {number} has shape {list(theirs)} in what is loaded, {list(mine)} in this state"
            )


def compare_names(names: Sequence[Sequence[str]], root: int = 0) -> str:
    """Return why states with these attribute names (by rank) differ from that of ``root``; empty if they match."""
    first = set(names[root])
    lines = []
    for rank, others in enumerate(names):
        more, less = sorted(set(others) - first), sorted(first - set(others))
        if more or less:
            parts = [f"has {', '.join(more)}, which rank {root} has not"] if more else []
            parts += [f"has no {', '.join(less)}, which rank {root} has"] if less else []
            lines.append(f"rank {rank} {' and '.join(parts)}")
    if not lines:
        return ""
    more_ranks = f"; and {len(lines) - 8} more ranks" if len(lines) > 8 else ""
    return f"the states of the ranks have different attributes: {'; '.join(lines[:8])}{more_ranks}"
