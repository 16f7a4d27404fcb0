"""Choose the rank whose state all ranks adopt after a failure, based on each rank's progress report.

A rank is *whole* if its failed operation was a gradient reduction. Its program has then completed the previous step,
and the current step has not modified any state. Training can therefore continue from the rank's current state, and the
step is repeated. A rank is also whole if the failure occurred in ``check_host_updates``, because the program's state is
consistent there. If another operation failed, such as a metric computed between the step and the batch counter, the
rank cannot know how far the program got. Such a rank can only offer its last commit.

A collective can succeed on some ranks and fail on others, so ranks differ by at most one step. Ranks that are a step
ahead already have the state that the other ranks would compute next. All ranks therefore take the state of the most
advanced whole rank, and no step is lost.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Standing:
    """Progress of one rank's training state.

    Attributes:
        steps: Number of training steps that the state includes, over all epochs of the job.
        whole: True if training can continue from the rank's current state.
        commits: Number of commits that the rank has made.
        new: True if the rank is new and has no training state yet. All its numbers are then 0.
        updates: Number of optimizer steps. One training step can include several.
    """

    steps: int = 0
    whole: bool = False
    commits: int = 0
    new: bool = True
    updates: int = 0


@dataclass(frozen=True)
class Outcome:
    """State that all ranks adopt after a failure.

    Attributes:
        root: Rank whose state is adopted.
        restore: True to use the last commit of ``root`` instead of its current state.
        lost: Number of steps that must be repeated, or 0 if a commit is restored. Steps since a commit are not counted.
    """

    root: int
    restore: bool
    lost: int = 0


def decide(standings: Sequence[Standing]) -> Outcome:
    """Choose the rank whose state all ranks adopt.

    All ranks compute the same result.

    Args:
        standings: Progress of each rank, indexed by rank.
    """
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
    """Choose the rank whose state all ranks adopt, knowing only which ranks are new.

    Returns:
        The first rank that is not new, or 0 if the job has just begun and all ranks are new.
    """
    return next((rank for rank, one in enumerate(new) if not one), 0)


class Mismatch(NamedTuple):
    """Mismatch between ranks' states that prevents joint training.

    Attributes:
        why: Description of the difference.
        is_local: True if this rank's state is one of those that must be replaced or rejected.
    """

    why: str
    is_local: bool


def find_mismatch(descriptions: Sequence[tuple[Sequence[str], bool]], rank: int) -> Mismatch | None:
    """Return the difference between the ranks' states, or None if they match.

    The state of the first rank that is not new is taken as correct, and only ranks whose state differs from it get
    ``is_local=True``. If all ranks are new, no state is known to be correct, so every rank gets ``is_local=True``.

    Args:
        descriptions: For each rank, its attribute names and True if the rank is new.
        rank: This rank.
    """
    root = holder([new for _, new in descriptions])
    difference = compare_names([names for names, _ in descriptions], root)
    if not difference:
        return None
    return Mismatch(difference, descriptions[root][1] or set(descriptions[rank][0]) != set(descriptions[root][0]))


def signature(tensors: Iterable[tuple[Sequence[int], object]]) -> str:
    """Return a digest of shapes and dtypes. Ranks can broadcast the arrays only if their digests are equal."""
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
    """Compare each rank's attribute names with those of ``root``.

    Returns:
        A description of the difference, or "" if there is none.
    """
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
