"""Communication graphs of gossip: which rank sends to which, round by round. Pure."""

from collections.abc import Callable, Sequence
from fractions import Fraction

Targets = list[list[int]]
"""By rank: the ranks that it sends to."""

Graph = Callable[[int, int], Sequence[Sequence[int]]]
"""(number of ranks, number of the round) -> ``Targets``; the same on all ranks."""


def exponential(size: int, number: int) -> Targets:
    """Send to the rank at distance 1, 2, 4, ... in turns.

    With a power of two as size, log2(size) rounds give the exact average.
    """
    hops = max(1, (size - 1).bit_length())
    distance = 1 << (number % hops)
    return [[(rank + distance) % size] if size > 1 else [] for rank in range(size)]


def ring(size: int, number: int) -> Targets:
    """Send to the next rank, and to the previous one in every other round."""
    step = -1 if number % 2 else 1
    return [[(rank + step) % size] if size > 1 else [] for rank in range(size)]


def pairs(size: int, number: int) -> Targets:
    """Exchange with one partner; every pair meets once in size - 1 rounds (size rounds if odd, each rank idle once).

    This is the circle method of round-robin tournaments.
    """
    places = size + size % 2  # an odd number of ranks gets an absent one; its partner is idle
    if size < 2:
        return [[] for _ in range(size)]
    turn = number % (places - 1)
    targets: Targets = [[] for _ in range(size)]
    for rank in range(size):
        if rank == places - 1:
            partner = (turn * (places // 2)) % (places - 1)
        else:
            partner = (turn - rank) % (places - 1)
            if partner == rank:
                partner = places - 1
        if partner < size:
            targets[rank] = [partner]
    return targets


GRAPHS: dict[str, Graph] = {"exponential": exponential, "ring": ring, "pairs": pairs}


def check_targets(targets: Sequence[Sequence[int]], size: int, push_sum: bool) -> Targets:
    """Return the targets of one round as lists.

    Args:
        targets: Result of a graph.
        size: Number of ranks.
        push_sum: False if every rank must receive as much weight as it gives away.

    Raises:
        ValueError: The targets are not valid for this number of ranks, or need push-sum.
    """
    found = [list(one) for one in targets]
    if len(found) != size or any(
        len(set(one)) < len(one) or rank in one or not set(one) <= set(range(size)) for rank, one in enumerate(found)
    ):
        raise ValueError(f"graph must give each of {size} ranks a list of distinct other ranks, got {found}")
    if not push_sum:
        weights = [Fraction(1, 1 + len(one)) for one in found]
        for rank, kept in enumerate(list(weights)):
            for target in found[rank]:
                weights[target] += kept
        if any(weight != 1 for weight in weights):
            raise ValueError(
                f"push_sum must be True for this graph: ranks receive the total weights {list(map(str, weights))} "
                "instead of 1 each, so plain mixing would not approach the average"
            )
    return found
