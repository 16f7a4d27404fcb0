"""Source: interface for records in blocks."""

import contextlib
import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.state import state


class Source(ABC):
    """Source of records in blocks, each of which is read as a whole.

    A subclass needs only ``lengths`` and a ``load`` that returns a list. Sources must be picklable, so that one rank
    can create a source, which may scan all files, and broadcast it.
    """

    lengths: Sequence[int]
    """Number of records of each block; equal on all ranks."""
    chains: Sequence[int] = ()
    """Number of consecutive blocks in each chain, which should be read in order, such as parts of compressed data.

    Empty: blocks are independent.
    """
    digest_of: str = "how many records each block has"
    """What ``digest`` depends on, including arguments of the source; for error messages."""

    @abstractmethod
    def load(self, block: int) -> Any:
        """Read and return all records of a block. Raises ValueError naming a file that is missing or damaged."""

    def walk(self) -> contextlib.AbstractContextManager[Callable[[int], Any]]:
        """Return a context manager for one iteration over blocks.

        It yields a function like ``load`` that may keep resources open between blocks.
        """
        return contextlib.nullcontext(self.load)

    def take(self, loaded: Any, places: Sequence[int]) -> Any:
        """Return the records at ``places`` of what ``load`` returned."""
        return [loaded[place] for place in places]

    def join(self, taken: Sequence[Any]) -> Any:
        """Join several results of ``take``, of one or more blocks, to a batch."""
        return [record for part in taken for record in part]

    def gather(self, chosen: Sequence[tuple[Any, Sequence[int]]]) -> Any:
        """Return a batch of the records at the given places of loaded blocks: ``take`` and ``join`` in one step."""
        return self.join([self.take(loaded, places) for loaded, places in chosen])

    def made_of(self) -> Sequence[tuple[str, int]]:
        """Return path and size of each file of the source, in order; empty if it is not made of files."""
        return ()

    def digest(self) -> str:
        """Return a digest that identifies the source's records.

        It depends on the number of records of the blocks and on names and sizes of the files. Names are relative to the
        files' common directory, so that moving that does not change the digest.
        """
        files = self.made_of()
        names = _within([path for path, _ in files])
        same: Any = [list(self.lengths), *zip(names, (size for _, size in files), strict=True)]
        return hashlib.sha256(repr(same if files else same[0]).encode()).hexdigest()[:16]


def _within(paths: Sequence[str]) -> list[str]:
    """Return the paths relative to their common directory."""
    parts = [path.split("/") for path in paths]
    first, last = min(parts, default=[]), max(parts, default=[])
    same = (one == other for one, other in zip(first[:-1], last[:-1], strict=False))
    common = sum(1 for _ in itertools.takewhile(bool, same))
    return ["/".join(one[common:]) for one in parts]


def place_here() -> str:
    """Return " (rank R)" for the end of error messages; empty outside a job."""
    return f" (rank {state.job.rank})" if state.job is not None else ""


def check_count(name: str, value: Any, least: int) -> int:
    """Return ``value``; raise ValueError naming the argument if it is not an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}{place_here()}")
    return value
