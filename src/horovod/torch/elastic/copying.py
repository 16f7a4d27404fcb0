"""Background copies for commits of an elastic state, and directories of checkpoints.

Commits are copied during the next forward and backward passes, which do not change parameters::

    commit --> copies begin --> forward, backward --> (optimizer is about to step: wait for the copies) --> step
"""

import copy
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import torch

from horovod.common.contract.log import warn_user
from horovod.common.elastic.state_checkpoint import StateCheckpoint
from horovod.torch.mpi_ops import rank, size

Pair = tuple[torch.Tensor, torch.Tensor]
"""Source and target of a copy, which are contiguous CPU tensors of the same dtype and shape."""

# Minimum size in bytes for which a copy is made in the background.
_MIN_BYTES = 1 << 20
# Size in bytes above which a copy takes noticeable time.
_SLOW_BYTES = 1 << 24
# Maximum delay in seconds between an operation's write to a tensor and the update of the tensor's version counter.
_SETTLED = 0.02


def can_wait(source: torch.Tensor, into: object) -> bool:
    """Return True if ``source`` can be copied to ``into`` in the background."""
    return (
        isinstance(into, torch.Tensor)
        and source.device.type == into.device.type == "cpu"
        and source.layout == into.layout == torch.strided
        and source.dtype == into.dtype
        and source.shape == into.shape
        and source.is_contiguous()
        and into.is_contiguous()
    )


class Copies:
    """Background copies of one elastic state, used for one commit at a time. Not thread-safe."""

    def __init__(self) -> None:
        self._batch: _Batch | None = None

    def begin(self, pairs: Sequence[Pair]) -> None:
        """Start background copies from each source to its target.

        The program must not change a source before it has been copied. If the version of a source has changed
        (``Tensor._version``), ``wait`` copies the new values instead and warns.
        """
        self.wait()
        if sum(source.nbytes for source, _ in pairs) < _MIN_BYTES:
            with torch.no_grad():
                for source, into in pairs:
                    into.copy_(source)
            return
        self._batch = _Batch(pairs)
        self._batch.start()

    def wait(self) -> None:
        """Wait until the copies are complete."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        batch.requested.set()
        batch.join()
        if not batch.changed:
            return
        with torch.no_grad():
            for source, into in batch.changed:
                into.copy_(source)
        warn_user(
            f"{len(batch.changed)} tensors of an elastic state were changed while a commit copied them in the "
            "background, so the commit has the changed values. Change parameters outside of optimizer.step(), such "
            "as averaged weights, before commit() or after state.wait()"
        )


class _Batch(threading.Thread):
    """Thread that copies the tensors of one commit in the background."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        super().__init__(name="horovod-commit", daemon=True)
        self._pairs = [(source, into, source._version) for source, into in pairs]
        self.requested = threading.Event()
        """Set when the program waits for the copies, from when on it changes no tensor."""
        self.changed: list[Pair] = []
        """Pairs whose source has changed since the commit, so that the copy may be wrong."""

    def run(self) -> None:
        # Operations update a tensor's version counter shortly after writing to the tensor, so wait before comparing
        # versions. Writes that begin after the copy are harmless.
        unsettled: deque[tuple[float, torch.Tensor, torch.Tensor, int]] = deque()
        for source, into, version in self._pairs:
            # Use memmove, because copy_() would start threads that compete with the training step for cores.
            ctypes.memmove(into.data_ptr(), source.data_ptr(), source.nbytes)
            unsettled.append((time.monotonic() + _SETTLED, source, into, version))
            while unsettled and unsettled[0][0] <= time.monotonic():
                self._look_at(*unsettled.popleft())
        for settled, *one in unsettled:
            self.requested.wait(max(0.0, settled - time.monotonic()))
            self._look_at(settled, *one)

    def _look_at(self, _: float, source: torch.Tensor, into: torch.Tensor, version: int) -> None:
        if source._version != version:
            self.changed.append((source, into))


class Later(NamedTuple):
    """Tensors to copy later in the background, as (source, target) pairs.

    ``steady`` contains the addresses of the tensors that can safely be copied in the background, or is None for all
    tensors.
    """

    pairs: list[Pair]
    steady: frozenset[int] | None

    def place(self, source: torch.Tensor, into: Any) -> torch.Tensor | None:
        """Schedule a copy and return its target, or return None if the tensor must be copied immediately."""
        if (self.steady is not None and source.data_ptr() not in self.steady) or not can_wait(source, into):
            return None
        self.pairs.append((source, into))
        return into  # type: ignore[no-any-return]


class _Never:
    """Replacement for ``Later`` that allocates memory for the copies without copying anything."""

    def place(self, source: torch.Tensor, _into: Any) -> torch.Tensor | None:
        made = torch.empty_like(source, memory_format=torch.contiguous_format)
        return made if can_wait(source, made) else None


def reserve(value: Any) -> Any:
    """Allocate memory for a later copy of a value.

    A new worker's initial values are replaced with those of the other ranks, which wait for the worker. Copying the
    initial values first would delay all ranks by 1.4 s per GiB.

    Returns:
        The memory, or None if the value's tensors are small.
    """
    return copied(value, None, _Never()) if _bytes_of(value) >= _SLOW_BYTES else None


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout == torch.strided else 0
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    return sum(map(_bytes_of, value)) if type(value) in (list, tuple) else 0


def copied(value: Any, into: Any, later: Later | _Never | None = None) -> Any:
    """Return a copy of a value, reusing the tensors of ``into``, an earlier copy, if they match."""
    if isinstance(value, torch.Tensor):
        source = value.detach()
        if later is not None and (place := later.place(source, into)) is not None:
            return place
        fits = (
            isinstance(into, torch.Tensor)
            and into.shape == source.shape
            and into.dtype == source.dtype
            and into.device == source.device
        )
        return into.copy_(source) if fits else source.clone()
    if isinstance(value, dict):
        before = into if isinstance(into, dict) else {}
        made = {key: copied(entry, before.get(key), later) for key, entry in value.items()}
        return type(value)(made) if type(value) is not dict else made
    if type(value) in (list, tuple):
        known = into if type(into) is type(value) and len(into) == len(value) else [None] * len(value)
        return type(value)(copied(entry, one, later) for entry, one in zip(value, known, strict=True))
    return copy.deepcopy(value)


class Checkpoint(StateCheckpoint):  # noqa: D101 - the base class's docstring
    __doc__ = StateCheckpoint.__doc__

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 3, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """Open a directory that contains checkpoints of the state.

        Args:
            directory (str or PathLike): Path, or a URL supported by fsspec such as ``s3://bucket/name``.
            keep (int): Number of latest checkpoints to keep. Default: 3.
            storage_options (Mapping, optional): Options of the fsspec file system.

        Raises:
            ValueError: If ``keep`` is less than 1, or ``directory`` is a file.
            ImportError: If the package that the URL needs is missing.
        """
        options = storage_options
        super().__init__(
            directory, keep, rank=rank, size=size, copied=_copied, dump=torch.save, load=_load, storage_options=options
        )


def _copied(value: Any) -> Any:
    return copied(value, None)


def _load(file: IO[bytes]) -> Any:
    # Use weights_only=False, because a state can contain any object. This program wrote the file, so it is trusted.
    return torch.load(file, map_location="cpu", weights_only=False)
