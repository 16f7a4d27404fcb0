"""Source: where records come from, in blocks."""

import contextlib
import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.state import state


class Source(ABC):
    """Records in blocks, each of which is read whole. For sources of your own: ``lengths`` and ``load`` that returns a
    list are enough. Can be pickled: a job may make it on one rank, which looks into all files, and broadcast it."""

    lengths: Sequence[int]
    """How many records each block has; the same on all ranks."""
    chains: Sequence[int] = ()
    """Where blocks that follow one another are read best in their order, such as parts of something compressed: how
    many are together, through all blocks. None: each stands alone."""
    digest_of: str = "how many records each block has"
    """What ``digest`` tells apart, in words for errors: with the arguments of the source that it depends on."""

    @abstractmethod
    def load(self, block: int) -> Any:
        """All records of the block of this number, read now. Raises ValueError naming the file that is not there any
        more, or torn."""

    def walk(self) -> contextlib.AbstractContextManager[Callable[[int], Any]]:
        """For one iteration over blocks: a function as ``load``, which may keep open what it needs for the next one."""
        return contextlib.nullcontext(self.load)

    def take(self, loaded: Any, places: Sequence[int]) -> Any:
        """Of what ``load`` returned, the records at ``places``."""
        return [loaded[place] for place in places]

    def join(self, taken: Sequence[Any]) -> Any:
        """Several of what ``take`` returned, of one or more blocks, as one batch."""
        return [record for part in taken for record in part]

    def gather(self, chosen: Sequence[tuple[Any, Sequence[int]]]) -> Any:
        """A batch of the records at the places of each of some loaded blocks: ``take`` and ``join`` in one."""
        return self.join([self.take(loaded, places) for loaded, places in chosen])

    def made_of(self) -> Sequence[tuple[str, int]]:
        """Path and bytes of each file that it is made of, in their order; none if it is of something else."""
        return ()

    def digest(self) -> str:
        """Tells sources of other records apart, by the numbers in their blocks, and the names and sizes of their files:
        as they are within the folder that all are in, so that they are the same when that has moved."""
        files = self.made_of()
        names = _within([path for path, _ in files])
        same: Any = [list(self.lengths), *zip(names, (size for _, size in files), strict=True)]
        return hashlib.sha256(repr(same if files else same[0]).encode()).hexdigest()[:16]


def _within(paths: Sequence[str]) -> list[str]:
    """What is left of the paths without the folders that they have in common."""
    parts = [path.split("/") for path in paths]
    first, last = min(parts, default=[]), max(parts, default=[])
    same = (one == other for one, other in zip(first[:-1], last[:-1], strict=False))
    common = sum(1 for _ in itertools.takewhile(bool, same))
    return ["/".join(one[common:]) for one in parts]


def place_here() -> str:
    """For the end of an error's sentence: which rank says so, in a job."""
    return f" (rank {state.job.rank})" if state.job is not None else ""


def check_count(name: str, value: Any, least: int) -> int:
    """Raises ValueError naming the argument when it is no integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}, accepted is an integer of at least {least}{place_here()}")
    return value
