"""Agreement between ranks on the process sets given to ``init``. Pure.

A set given as a list of ranks is the same on all ranks. With communicators, each rank passes its own: after
``comm.Split``, ranks pass different sets at one index, and ranks that are in none pass COMM_NULL. All sets at an index
are registered on all ranks, in the order of their first ranks.
"""

from collections.abc import Callable, Sequence

import msgspec


class GivenSet(msgspec.Struct, array_like=True, frozen=True):
    """Process set that one rank gives at one index."""

    ranks: list[int]
    """Sorted ranks of the job. For a communicator: world ranks in its order; empty for COMM_NULL."""
    by_communicator: bool = False


Sets = tuple[tuple[int, ...], ...]
"""Sorted ranks of the job for each set that results from one index."""
Name = Callable[[int], str]
"""Returns the name of a rank for messages."""


def agree(given: Sequence[Sequence[GivenSet]], world: Sequence[int], name: Name) -> tuple[Sets, ...]:
    """Return the agreed sets by index.

    Args:
        given: Given sets by rank of the job.
        world: World rank by rank of the job.
        name: Returns the name of a rank for messages.

    Raises:
        ValueError: If the ranks disagree; on all ranks alike, naming index, ranks and the difference.
    """
    first = given[0]
    for rank, row in enumerate(given):
        if len(row) != len(first):
            raise ValueError(f"{name(0)} gave init {len(first)} process sets, {name(rank)} {len(row)}")
    agreed: list[Sets] = []
    seen: dict[tuple[int, ...], int] = {}
    for index in range(len(first)):
        sets = _at(index, [row[index] for row in given], world, name)
        for ranks in sets:
            if ranks in seen:
                raise ValueError(f"process_sets[{index}] with ranks {list(ranks)} repeats process_sets[{seen[ranks]}]")
        seen.update(dict.fromkeys(sets, index))
        agreed.append(sets)
    return tuple(agreed)


def _at(index: int, column: Sequence[GivenSet], world: Sequence[int], name: Name) -> Sets:
    first = column[0]
    for rank, theirs in enumerate(column):
        if theirs.by_communicator != first.by_communicator:
            kinds = [f"made from {'a communicator' if one.by_communicator else 'ranks'}" for one in (first, theirs)]
            raise ValueError(f"process_sets[{index}] is {kinds[0]} on {name(0)} but {kinds[1]} on {name(rank)}")
        if not first.by_communicator and theirs.ranks != first.ranks:
            raise ValueError(
                f"process_sets[{index}] has ranks {first.ranks} on {name(0)} but {theirs.ranks} on {name(rank)}"
            )
    if not first.by_communicator:
        return (tuple(first.ranks),)
    return _of_communicators(index, [one.ranks for one in column], world, name)


def _of_communicators(index: int, column: Sequence[list[int]], world: Sequence[int], name: Name) -> Sets:
    what = f"process_sets[{index}]"
    rank_of = {number: rank for rank, number in enumerate(world)}
    givers: dict[tuple[int, ...], list[int]] = {}
    for rank, theirs in enumerate(column):
        if theirs:
            givers.setdefault(tuple(theirs), []).append(rank)
    if not givers:
        raise ValueError(f"{what} must be a communicator on at least one rank, got COMM_NULL on all ranks")
    sets = []
    for numbers, who in givers.items():
        unknown = [number for number in numbers if number not in rank_of]
        if unknown:
            raise ValueError(
                f"{what} must be a communicator within the communicator passed to init, got one on {name(who[0])} with "
                f"world ranks {list(numbers)}, of which {unknown} are not in this job"
            )
        ranks = [rank_of[number] for number in numbers]
        apart = sorted(set(ranks) ^ set(who))
        if apart:
            other = [rank_of.get(number, number) for number in column[apart[0]]]
            raise ValueError(
                f"{what}: the communicator of {name(who[0])} has ranks {ranks}, but {name(apart[0])} gives one with "
                f"{f'ranks {other}' if other else 'none, COMM_NULL'}; communicators must not overlap, and all ranks of "
                "one must pass it"
            )
        if ranks != sorted(ranks):
            raise ValueError(
                f"{what}: ranks of a communicator must be in the order of hvd.rank(), got {ranks} on {name(who[0])}; "
                "pass hvd.rank(), or the same number on all ranks, to Split as key"
            )
        sets.append(tuple(ranks))
    return tuple(sets)
