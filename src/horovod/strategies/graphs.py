"""Communication graphs of gossip averaging, which determine the ranks that each rank sends to in a round."""

from collections.abc import Callable, Sequence
from fractions import Fraction

Targets = list[list[int]]
"""For each rank, the list of ranks that it sends to."""

Graph = Callable[[int, int], Sequence[Sequence[int]]]
"""Function of the number of ranks and the number of the round. Its ``Targets`` must be the same on all ranks."""


def exponential(size: int, number: int) -> Targets:
    """Send to the rank at distance 1, 2, 4, ..., one distance per round.

    If size is a power of two, log2(size) rounds compute the exact average.
    """
    hops = max(1, (size - 1).bit_length())
    distance = 1 << (number % hops)
    return [[(rank + distance) % size] if size > 1 else [] for rank in range(size)]


def ring(size: int, number: int) -> Targets:
    """Send to the next rank in even rounds, and to the previous rank in odd rounds."""
    step = -1 if number % 2 else 1
    return [[(rank + step) % size] if size > 1 else [] for rank in range(size)]


def pairs(size: int, number: int) -> Targets:
    """Exchange with one partner. Every pair of ranks meets once in size - 1 rounds.

    If size is odd, this takes size rounds, and each rank is idle in one of them. The pairs are formed by the circle
    method of round-robin tournaments.
    """
    places = size + size % 2  # for an odd size, add an absent rank, whose partner is idle
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
    """Check the targets of one round, and return them as lists.

    Args:
        targets: Targets that a graph returned.
        size: Number of ranks.
        push_sum: False if every rank must receive the same total weight as it sends.

    Raises:
        ValueError: The targets are not valid for this number of ranks, or require push-sum.
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
