"""``check_in_sync``: check that all ranks hold the same values.

One small exchange is enough if they do. Otherwise a second one finds the first difference. ``fingerprints`` describes
what is compared.
"""

from collections.abc import Callable, Mapping, Sequence

from horovod.common.contract import reasons
from horovod.common.exceptions import OutOfSyncError
from horovod.common.faces import Face
from horovod.common.in_sync.fingerprints import Leaf, whole
from horovod.common.objects import allgather_object
from horovod.common.process_sets import ProcessSet

_VALUES = 4  # number of different values in a message
_PATHS = 5  # number of further paths in a message
_MISSING = Leaf(b"", "missing")


def check(leaves: Callable[[], dict[str, Leaf]], process_set: ProcessSet, face: Face) -> str:
    """Compare what ``leaves`` returns on all ranks of the set; all of them call it.

    Args:
        leaves: Returns this rank's values by path.
        process_set: Ranks that take part.
        face: Frontend whose operations are used.

    Returns:
        SHA-256 of the values in hexadecimal, equal on all ranks.

    Raises:
        OutOfSyncError: On all ranks, if values differ, or if ``leaves`` fails on another rank; a rank where it fails
            raises that error instead. Other errors are those of ``allgather_object``.
    """
    mine: dict[str, Leaf] = {}
    failure: Exception | None = None
    try:
        mine = leaves()
        said = (whole(mine), "")
    except Exception as error:  # other ranks must learn of the error instead of waiting
        failure = error
        said = ("", f"{type(error).__name__}: {error}"[:1000])
    answers = allgather_object(said, "check_in_sync", process_set, face)
    if failure is not None:
        raise failure
    ranks = process_set.ranks or ()
    for rank, (_, reason) in zip(ranks, answers, strict=True):
        if reason:
            raise OutOfSyncError(f"check_in_sync: rank {rank} could not tell what it holds: {reason}")
    if len(set(answers)) == 1:
        return said[0]
    details = allgather_object(
        {path: (leaf.digest, leaf.shown, leaf.exact) for path, leaf in mine.items()},
        "check_in_sync.details",
        process_set,
        face,
    )
    tables = [{path: Leaf(*leaf) for path, leaf in table.items()} for table in details]
    raise OutOfSyncError(report(ranks, tables))


def report(ranks: Sequence[int], tables: Sequence[Mapping[str, Leaf]]) -> str:
    """Return text on which paths differ, and how the first of them does.

    Args:
        ranks: World ranks.
        tables: Values by path for each rank. The order of the first rank decides which path is named first.
    """
    paths = list(dict.fromkeys(path for table in tables for path in table))
    different = [path for path in paths if len({table.get(path, _MISSING).digest for table in tables}) > 1]
    first, more = different[0], different[1:]
    holders: dict[bytes, tuple[Leaf, list[int]]] = {}
    for rank, table in zip(ranks, tables, strict=True):
        leaf = table.get(first, _MISSING)
        holders.setdefault(leaf.digest, (leaf, []))[1].append(rank)
    text = f"check_in_sync: the ranks differ: {first} {_values(list(holders.values()))}; "
    text += f"{len(different)} of {len(paths)} values differ"
    if more:
        text += ", also " + ", ".join(more[:_PATHS]) + (", ..." if len(more) > _PATHS else "")
    return text


def _values(holders: Sequence[tuple[Leaf, Sequence[int]]]) -> str:
    """Return text on which ranks hold which value of one path."""
    named, others = holders[:_VALUES], ""
    if len(holders) > _VALUES:
        others = f", and {len(holders) - _VALUES} more values"
    if _MISSING in [leaf for leaf, _ in holders] or all(leaf.exact for leaf, _ in holders):
        return "is " + " and ".join(f"{leaf.shown} on {reasons.named_ranks(who)}" for leaf, who in named) + others
    parts = [f"{'one' if i == 0 else 'another'} on {reasons.named_ranks(who)}" for i, (_, who) in enumerate(named)]
    return f"({holders[0][0].shown}) is " + ", ".join(parts) + others
