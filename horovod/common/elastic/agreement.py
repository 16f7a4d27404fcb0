"""From whom all ranks take the state after a failure, and which one: decided from what each says of its own. Pure.

A rank is *whole* when its failure hit the reduction of gradients. Then it stands before an optimizer step: the program
has finished with all that belongs to the step before, and this step has changed nothing yet. So what it holds is a
state in which training can go on as it is, and the step is done again. It is whole as well when the failure hit
``check_host_updates``, where the program is ready to hand its state to others anyway. Where the failure hit something
else (a metric between the step and the counter of batches, say), nobody knows how far the program had come; such a rank
has its last commit.

Ranks differ by one step at most: a collective may have succeeded on some ranks and failed on others. Those a step ahead
hold what the others would have come to, so the state of the furthest whole rank is taken, and no step is lost.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Standing:
    """What a rank says of its state. ``steps``: those of the training that it has taken part in, all epochs of the job
    included; ``commits``: how often it has committed; ``updates``: the optimizers' steps, of which several may make one
    of the training. All 0 on a rank that is new, which has nothing to give."""

    steps: int = 0
    whole: bool = False
    commits: int = 0
    new: bool = True
    updates: int = 0


@dataclass(frozen=True)
class Outcome:
    """``root``: the rank whose state all get. ``restore``: its last commit, and not what it holds now. ``lost``: steps
    that some rank had taken and that are done again, as far as is known: since the commit nobody counts."""

    root: int
    restore: bool
    lost: int = 0


def decide(standings: Sequence[Standing]) -> Outcome:
    """The same on all ranks. ``standings``: by rank."""
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
    """From whom all take the state where ranks only say whether they are new: the first that is not; rank 0 of a job
    in which all are, which begins."""
    return next((rank for rank, one in enumerate(new) if not one), 0)


class Misfit(NamedTuple):
    """``why`` states cannot be brought together; ``mine``: for a reason of this rank's."""

    why: str
    mine: bool


def find_misfit(told: Sequence[tuple[Sequence[str], bool]], rank: int) -> Misfit | None:
    """What is wrong with the states of a job, None: nothing. ``told``: by rank, the names of the attributes, and
    whether the rank is new. Those that differ from a rank that holds the state of the training (``holder``) are wrong,
    and the others may go on without them; where nobody does, all are."""
    root = holder([new for _, new in told])
    difference = compare_names([names for names, _ in told], root)
    if not difference:
        return None
    return Misfit(difference, told[root][1] or set(told[rank][0]) != set(told[root][0]))


def signature(tensors: Iterable[tuple[Sequence[int], object]]) -> str:
    """Of shapes and dtypes, in their order: equal where broadcasts fit together."""
    shown = [f"{list(shape)} {dtype}" for shape, dtype in tensors]
    return f"{len(shown)} tensors, {hashlib.sha256(' '.join(shown).encode()).hexdigest()[:8]}"


def check_shapes(here: Sequence[tuple[int, ...]], loaded: Sequence[tuple[int, ...]]) -> None:
    """Raises ValueError where a checkpoint's variables are not those of the state."""
    if len(here) != len(loaded):
        raise ValueError(f"what is loaded has {len(loaded)} variables, this state {len(here)}")
    for number, (mine, theirs) in enumerate(zip(here, loaded, strict=True)):
        if mine != theirs:
            raise ValueError(
                f"variable {number} has shape {list(theirs)} in what is loaded, {list(mine)} in this state"
            )


def compare_names(names: Sequence[Sequence[str]], root: int = 0) -> str:
    """Why states with these attributes, by rank, cannot be brought together with that of ``root``; empty when they
    can."""
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
