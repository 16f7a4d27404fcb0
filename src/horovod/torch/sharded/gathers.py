"""Gathers of updated parameters from the ranks that own them, optionally during the next forward pass.

With an overlap, ``step()`` submits all gathers and returns. Modules then wait for the gathers of their parameters: in
a forward pre-hook, and when a parameter is read from the module, for example by the forward pass of another module, by
``parameters()`` or by ``state_dict()``.
"""

import atexit
import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from horovod.common.contract.log import warn_user
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import TORCH as frontend
from horovod.common.process_sets import ProcessSet
from horovod.torch.ops import handles
from horovod.torch.ops.allgather import allgather_async
from horovod.torch.reducer.backward import _is_traced, _untraced

# Maximum seconds of one wait. Between waits, Python can run signal handlers (Ctrl-C).
_SLICE_SECONDS = 0.5


class Flat(Protocol):
    """Flat memory of several parameters, of which each rank owns one shard (``shards.Bucket``)."""

    name: str
    flat: torch.Tensor
    shard: torch.Tensor
    members: list[torch.Tensor]


class Gathers:
    """Gathers of the parameters of one optimizer, bucket by bucket.

    If ``tracked`` is not None, gathers continue during the next forward pass. ``tracked`` contains the parameters that
    the forward pass waits for (``track``), in the order of their use.
    """

    def __init__(
        self, buckets: Sequence[Flat], process_set: ProcessSet, tracked: Sequence[torch.Tensor] | None = None
    ) -> None:
        place = {p: i for i, p in enumerate(tracked or ())}
        # Order buckets by first use. Those with untracked parameters come first, because step() waits for them.
        self._buckets = sorted(buckets, key=lambda bucket: min(place.get(p, -1) for p in bucket.members))
        self._process_set, self._overlaps = process_set, tracked is not None
        self._bucket_of = {p: bucket for bucket in buckets for p in bucket.members}
        self._untracked = [p for p in self._bucket_of if p not in place]
        # Handles of the gathers in flight, in the order of submission.
        self._pending: dict[Flat, int] = {}
        # Error of a gather that failed while the job ended. The next wait raises it.
        self._failure: Exception | None = None
        self._lock = threading.RLock()

    def run(self) -> None:
        """Gather the updated parameters on every rank. With an overlap, only submit the gathers.

        Raises:
            HorovodInternalError: If a rank was lost.
        """
        if self._overlaps and _compiled:
            self._overlaps = False
            warn_user(
                "ShardedOptimizer: overlap= has no effect, because torch.compile has traced the model: compiled code "
                "cannot wait for parameters, so step() does. Remove overlap= or torch.compile"
            )
        if not self._overlaps:
            self._run_blocking()
            return
        with self._lock:
            try:
                for bucket in self._buckets:
                    handle = self._pending[bucket] = self._submit(bucket)
                    # Poll to prevent fusion: the engine may fuse operations that are submitted without a poll or wait
                    # in between. Fused gathers would all complete only with the last one.
                    handles.poll(handle)
            except Exception:
                self.discard()
                raise
            finally:
                if self._pending:
                    _unfinished.append(self)
        self.wait(self._untracked)

    @torch.no_grad()
    def _run_blocking(self) -> None:
        """Gather the updated parameters, with no more than two buckets in flight."""
        pending = self._submit(self._buckets[0])
        for i, bucket in enumerate(self._buckets):
            following = self._submit(self._buckets[i + 1]) if i + 1 < len(self._buckets) else 0
            bucket.flat.copy_(handles.synchronize(pending))
            pending = following

    def _submit(self, bucket: Flat) -> int:
        return allgather_async(bucket.shard, bucket.name, self._process_set)

    @torch.no_grad()
    def wait(self, parameters: Iterable[torch.Tensor] | None = None) -> None:
        """Wait until ``parameters`` (default: all) are gathered, and store the results of all completed gathers.

        Raises:
            HorovodInternalError: If a rank was lost. Some parameters then have new values, and others old ones.
        """
        of = self._bucket_of
        requested = set(of.values() if parameters is None else [of[p] for p in parameters if p in of])
        # If there is nothing to wait for, do not take the lock. The thread that holds it may be waiting for other
        # ranks, which may be waiting for this thread.
        if not requested or (self._failure is None and not any(bucket in self._pending for bucket in requested)):
            return
        with self._lock:
            if (failure := self._failure) is not None:
                self.discard()
                raise failure
            try:
                while self._pending:
                    bucket, handle = next(iter(self._pending.items()))
                    needed = any(one in self._pending for one in requested)
                    # Keep the handle until the gather is complete, so that a later wait can continue after Ctrl-C.
                    if handles.wait_briefly(handle, _SLICE_SECONDS if needed else 0.0):
                        if bucket in self._pending:  # False if a signal handler has already completed this gather
                            bucket.flat.copy_(handles.synchronize(handle))
                            del self._pending[bucket]
                    elif not needed:
                        return
                    elif frontend.forked:
                        frontend.require_engine()  # raises
            except HorovodInternalError:
                self.discard()
                raise
            self.discard()

    def discard(self) -> None:
        """Wait for all gathers, and ignore their results and errors."""
        with self._lock:
            issued, self._failure = list(self._pending.values()), None
            self._pending.clear()
            if self in _unfinished:
                _unfinished.remove(self)
            with contextlib.suppress(Exception):
                handles.synchronize_all(issued)

    def settle(self) -> None:
        """Wait for all gathers before the job ends. Keep an error, which is raised when a parameter is next read."""
        try:
            self.wait()
        except Exception as error:
            self._failure = error.with_traceback(None)
            _unfinished.append(self)


# Objects with gathers in flight or an error. They cannot be copied, so models do not refer to them.
_unfinished: list[Gathers] = []
# True once torch.compile has traced a module that waits for parameters.
_compiled = False


def track(model: torch.nn.Module) -> list[torch.Tensor]:
    """Make each module of ``model`` wait for its parameters when it uses them. Return all these parameters."""
    scripted: set[torch.Tensor] = set()
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            scripted.update(module.parameters())
        elif module._parameters and type(module._parameters) is not _Parameters:
            vars(module)["_parameters"] = _Parameters(module._parameters)
            module.register_forward_pre_hook(_before_forward, prepend=True)
    # Exit functions run in reverse order. Register this one last, so that it runs before the engine stops.
    atexit.unregister(settle_all)
    atexit.register(settle_all)
    return [p for p in model.parameters() if p not in scripted]


def settle_all() -> None:
    """Wait for all gathers in flight before the job ends."""
    for gathers in tuple(_unfinished):
        gathers.settle()


@_untraced
def _wait_for(parameters: Iterable[torch.Tensor]) -> None:
    for gathers in tuple(_unfinished):
        gathers.wait(parameters)


def _before_forward(module: torch.nn.Module, _inputs: Any) -> None:
    global _compiled
    if _is_traced():
        _compiled = True
    if _unfinished:
        # Wait here, because modules such as LSTM do not read their parameters through `_Parameters`.
        module._parameters.values()


class _Parameters(dict[str, Any]):
    """Parameters of a module. Reading one waits until it is gathered. Copies and pickles are plain dictionaries."""

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if _unfinished:
            _wait_for([parameter])
        return parameter

    def values(self) -> Any:
        if _unfinished:
            _wait_for(list(super().values()))
        return super().values()

    def items(self) -> Any:
        self.values()
        return super().items()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return dict, (dict(self.items()),)
