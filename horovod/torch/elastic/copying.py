"""A commit's copy beside the next step's forward and backward passes, which read parameters and do not change them.

commit --> copies begin --> forward, backward --> (an optimizer is about to step: wait for the copies) --> step
"""

import copy
import ctypes
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from horovod.common.contract.frames import warn_user

Pair = tuple[torch.Tensor, torch.Tensor]
"""What is copied, and whereto: both on the CPU, of one type and size, and contiguous."""

_LEAST = 1 << 20  # bytes for which a thread is worth while
_MUCH = 1 << 24  # bytes whose copy somebody may notice
_SETTLED = 0.02  # s after which an operation that was under way has counted its change


def can_wait(source: torch.Tensor, into: object) -> bool:
    """May this copy be made later, by ``Copies``?"""
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
    """Of one state, one after the other. For one thread."""

    def __init__(self) -> None:
        self._batch: _Batch | None = None

    def begin(self, pairs: Sequence[Pair]) -> None:
        """Copies them while the program goes on. It must not change a tensor before that is copied: if it does so by
        operations that PyTorch counts (``Tensor._version``), ``wait`` copies what it has become, whole, and warns."""
        self.wait()
        if sum(source.nbytes for source, _ in pairs) < _LEAST:
            with torch.no_grad():
                for source, into in pairs:
                    into.copy_(source)
            return
        self._batch = _Batch(pairs)
        self._batch.start()

    def wait(self) -> None:
        """Until they are made."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        batch.wanted.set()
        batch.join()
        if not batch.changed:
            return
        with torch.no_grad():
            for source, into in batch.changed:
                into.copy_(source)
        warn_user(
            f"{len(batch.changed)} tensors of an elastic state were changed while a commit copied them, beside the "
            "program: the commit has what they have become. What changes parameters by itself, averaged weights for "
            "one, is to do so before commit(), or after state.wait()"
        )


class _Batch(threading.Thread):
    """The copies of one commit."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        super().__init__(name="horovod-commit", daemon=True)
        self._pairs = [(source, into, source._version) for source, into in pairs]
        self.wanted = threading.Event()
        """The program waits, so nothing is being changed."""
        self.changed: list[Pair] = []
        """Those that may be torn, or have other values than the program committed."""

    def run(self) -> None:
        # Operations count a change when they have made it, so one that was under way during the copy is seen a little
        # later. What is changed much later does not matter: the copy has what was committed.
        unsettled: deque[tuple[float, torch.Tensor, torch.Tensor, int]] = deque()
        for source, into, version in self._pairs:
            # Not copy_(), which would have threads of its own, and they the cores of the step.
            ctypes.memmove(into.data_ptr(), source.data_ptr(), source.nbytes)
            unsettled.append((time.monotonic() + _SETTLED, source, into, version))
            while unsettled and unsettled[0][0] <= time.monotonic():
                self._look_at(*unsettled.popleft())
        for settled, *one in unsettled:
            self.wanted.wait(max(0.0, settled - time.monotonic()))
            self._look_at(settled, *one)

    def _look_at(self, _: float, source: torch.Tensor, into: torch.Tensor, version: int) -> None:
        if source._version != version:
            self.changed.append((source, into))


class Later(NamedTuple):
    """Which copies may be made a little later: ``pairs`` gets them. ``steady``: those of tensors at these addresses,
    None: all."""

    pairs: list[Pair]
    steady: frozenset[int] | None

    def place(self, source: torch.Tensor, into: Any) -> torch.Tensor | None:
        """Where the copy will be; None: it cannot wait."""
        if (self.steady is not None and source.data_ptr() not in self.steady) or not can_wait(source, into):
            return None
        self.pairs.append((source, into))
        return into  # type: ignore[no-any-return]


class _Never:
    """As ``Later``, for copies that are not made at all: only their memory is, which nobody has touched yet."""

    def place(self, source: torch.Tensor, _into: Any) -> torch.Tensor | None:
        made = torch.empty_like(source, memory_format=torch.contiguous_format)
        return made if can_wait(source, made) else None


def reserve(value: Any) -> Any:
    """What ``copied`` copies into later. None if the tensors are so small that copying them now takes no time. A new
    worker makes its state while the others wait for it, and then gets their values: copying its own took 1.4 s for
    1 GiB."""
    return copied(value, None, _Never()) if _bytes_of(value) >= _MUCH else None


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout == torch.strided else 0
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    return sum(map(_bytes_of, value)) if type(value) in (list, tuple) else 0


def copied(value: Any, into: Any, later: Later | _Never | None = None) -> Any:
    """A copy, in the memory of ``into`` (an earlier one of the same, or None) where tensors have kept their size."""
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
