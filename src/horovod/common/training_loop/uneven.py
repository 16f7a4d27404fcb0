"""Training loops over data for ranks with different numbers of batches."""

import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from horovod.common import dtypes
from horovod.common.contract.log import warn_user
from horovod.common.frontends import Frontend
from horovod.common.objects import broadcast_object
from horovod.common.ops import Max
from horovod.common.training_loop.weights import check_weight, current, decode, encode

POLICIES = ("join", "stop", "pad")

_T = TypeVar("_T")

optimizers: "weakref.WeakValueDictionary[str, Any]" = weakref.WeakValueDictionary()
"""Distributed optimizers of this process by a name that is the same on all ranks."""


class Sync(Generic[_T]):
    """Iterable over a rank's batches that lets ranks with different numbers of batches train together.

    It fetches one batch ahead, so that each rank can announce during a batch whether it has another one. The readiness
    message of PyTorch's ``DistributedOptimizer`` contains this announcement. If no such message was sent during a
    batch, ``_exchange`` sends a message.
    """

    def __init__(
        self,
        batches: Iterable[_T],
        policy: str,
        weight: Callable[[_T], float] | float | None,
        frontend: Frontend,
        join: Callable[[], int] | None = None,
        copy: Callable[[Any, int], None] | None = None,
        wait: Callable[[Any, Any], None] | None = None,
        policies: Sequence[str] = POLICIES,
    ) -> None:
        """Check the arguments. For their meaning, see ``make_sync`` and the function that it returns."""
        frontend.require_job()
        if policy not in policies:
            raise ValueError(f"policy must be one of {', '.join(policies)}, got {policy!r}")
        if not isinstance(batches, Iterable):
            raise ValueError(f"batches must be iterable, got {type(batches).__name__}")
        if weight is not None and not callable(weight):
            check_weight(weight)
        self._batches, self._policy, self._weight = batches, policy, weight
        self._frontend, self._join, self._copy = frontend, join or self._engine_join, copy
        self._wait = wait or (lambda work, memory: work.wait())
        self.weight = 0.0
        """Weight of the current batch, or 0 for a copy."""
        self.padding = False
        """True if the current batch is a copy that stands in for a missing batch."""
        self.remaining: int | None = 0
        """Number of batches of this rank that ``stop`` left out, or None if unknown."""
        self.last_rank: int | None = None
        """Rank that had the most batches, if ranks had different numbers and the policy is ``join``."""

    def __iter__(self) -> Iterator[_T]:
        if current.batch is not None:
            raise RuntimeError("hvd.sync() loops must not be nested")
        self.padding, self.remaining, self.last_rank = False, 0, None
        try:
            yield from self._loop(iter(self._batches))
        finally:
            current.batch, current.ended = None, None
            current.last = current.padding = current.joins = False
            current.stepped.clear()

    def _loop(self, source: Iterator[_T]) -> Iterator[_T]:
        missing: Any = object()
        batch, count = next(source, missing), 0
        if self._policy != "join" and any(empty := self._exchange(0.0, batch is missing)):
            if self._policy == "stop" or all(empty):
                self._report(batch is not missing, 0, empty)
                return
            root = empty.index(False)
            self.padding = batch is missing
            sent = self._share(None if batch is missing else batch, root)
            batch = sent if batch is missing else batch
        while batch is not missing:
            following = missing if self.padding else next(source, missing)
            self._begin(batch, last=following is missing)
            yield batch
            count += 1
            ended = current.ended
            if ended is None:
                ended = self._exchange(self.weight, following is missing)
            if all(ended) or (self._policy == "stop" and any(ended)):
                self._report(following is not missing, count, ended)
                return
            self.padding = self._policy == "pad" and following is missing
            batch = batch if self.padding else following
        current.last = False
        self._catch_up()

    def _begin(self, batch: _T, last: bool) -> None:
        if self.padding:
            self.weight = 0.0
        elif callable(self._weight):
            self.weight = check_weight(self._weight(batch))
        else:
            self.weight = check_weight(samples(batch) if self._weight is None else self._weight)
        current.batch, current.last, current.padding = self.weight, last, self.padding
        current.joins = self._policy == "join"
        current.ended = None
        current.index += 1

    def _exchange(self, weight: float, last: bool) -> list[bool]:
        """Exchange batch weights with all ranks. Return a bool for each rank, True if it has no further batch.

        Args:
            weight: Weight of this rank's current batch.
            last: True if this rank has no further batch.
        """
        from horovod import _core

        job = self._frontend.require_job()
        message = encode(weight, last, job.rank, job.size)
        memory = (ctypes.c_char * len(message)).from_buffer(message)
        address, shape = ctypes.addressof(memory), (len(message),)
        kind, form = _core.KIND_ALLREDUCE, dtypes.UINT8
        name = "sync.batches"
        work = self._frontend.run(kind, name, address, address, shape, form, Max, 0, 1.0, 1.0, 0, None, "", 0)
        self._wait(work, message)
        return decode(message)[1]

    def _share(self, item: Any, root: int) -> Any:
        return broadcast_object(item, root, "sync", frontend=self._frontend)

    def _engine_join(self) -> int:
        work = self._frontend.require_engine().join(self._frontend.number)
        work.wait()
        return work.sizes[0]

    def _catch_up(self) -> None:
        """Wait until all ranks are out of batches. Copy the optimizers from the rank that completed the most steps."""
        used = sorted(name for name in current.stepped if name in optimizers)
        self.last_rank = self._join()
        if current.batch is None:  # a rank without any batch takes part in the weighted averages with weight 0
            current.batch = 0.0
        if self._copy is not None:
            for name in self._share(used, self.last_rank):
                if name not in optimizers:
                    raise RuntimeError(
                        f"rank {self._frontend.require_job().rank} lacks the optimizer of {name!r}, which "
                        f"rank {self.last_rank} used in the loop; create the same optimizers on all ranks"
                    )
                self._copy(optimizers[name], self.last_rank)

    def _report(self, more: bool, count: int, ended: Sequence[bool]) -> None:
        """Warn about this rank's unprocessed batches, if any."""
        if not more:
            return
        try:
            total = len(self._batches)  # type: ignore[arg-type]
        except TypeError:  # some iterables, such as generators, have no length
            total = None
        self.remaining = None if total is None else total - count
        ranks = ", ".join(str(rank) for rank, end in enumerate(ended) if end)
        left = "batches" if total is None else f"{self.remaining} batches"
        rank = self._frontend.require_job().rank
        warn_user(f"hvd.sync stopped after {count} batches: rank {ranks} has no more, {left} of rank {rank} are unused")


def make_sync(
    frontend: Frontend,
    join: Callable[[], int] | None = None,
    copy: Callable[[Any, int], None] | None = None,
    wait: Callable[[Any, Any], None] | None = None,
    policies: Sequence[str] = POLICIES,
) -> "Callable[..., Sync[Any]]":
    """Create a frontend's ``sync`` function.

    Args:
        frontend: The frontend.
        join: The frontend's ``join`` function, or None for the engine's.
        copy: Function that copies parameters and state of an optimizer in ``optimizers`` from the given rank to all
            ranks.
        wait: Function that waits for an operation that uses the given memory, or None for the engine's.
        policies: Supported policies.
    """

    def sync(
        batches: Iterable[_T], policy: str = "pad", weight: Callable[[_T], float] | float | None = None
    ) -> Sync[_T]:
        """Return an iterable over this rank's batches, for ranks with different numbers of batches.

        If averages of gradients are weighted by the numbers of samples, each step is equivalent to a step of a single
        process on the batches of all ranks together. PyTorch's ``DistributedOptimizer`` applies these weights in the
        loop, and ``hvd.weight`` takes precedence over ``weight`` there. In other frameworks, pass the attribute
        ``weight`` to the reduction. The loss must be the mean over a batch. If gradients accumulate over several
        backward passes, all of them must run in the same iteration, so an item of ``batches`` must contain all batches
        of a step. Policies:

        - ``"pad"``: a rank without further batches gets its last batch again, which counts as 0 samples. All ranks make
          the same number of iterations. Layers with batch statistics and counters of samples see the copies.
        - ``"join"``: a rank without further batches leaves the loop when all ranks are out of batches. PyTorch then
          copies the parameters and the state of each ``DistributedOptimizer`` that the loop has used from a rank that
          has made all steps. Buffers of the model, learning rate schedulers and gradient scalers that change in the
          loop are not copied. Sparse gradients become dense. In TensorFlow and NumPy, broadcast the model from
          ``last_rank``. JAX does not support this policy.
        - ``"stop"``: all ranks leave the loop when one rank has no further batch. Ranks with remaining batches warn
          about their number.

        All ranks must run the loop, including those without a batch, and make the same optimizer steps in each
        iteration. If one rank leaves the loop with ``break``, all ranks must leave it.

        Args:
            batches (Iterable): Batches of this rank, such as a ``DataLoader`` or ``tf.data.Dataset``.
            policy (str): ``"pad"`` (default), ``"join"`` or ``"stop"``.
            weight (float or Callable, optional): Weight of a batch, such as a number of tokens, or a function of a
                batch that returns it. Default: length of the first dimension of the batch's first array.

        Returns:
            Sync: Iterable with the attributes ``padding`` (True if the current batch is a copy), ``weight`` (weight of
            the current batch), ``remaining`` (number of batches that ``"stop"`` left out, None if unknown), and
            ``last_rank`` (rank that made all steps with ``"join"``, None if all ranks did).

        Raises:
            ValueError: If an argument is invalid, or Horovod is not initialized.

        Example::

            for images, labels in hvd.sync(loader):
                optimizer.zero_grad()
                loss_fn(model(images), labels).backward()
                optimizer.step()
        """
        return Sync(batches, policy, weight, frontend, join, copy, wait, policies)

    return sync


def samples(batch: Any) -> int:
    """Return the length of the first dimension of the first array in ``batch``.

    Args:
        batch: Array, or a mapping or sequence that contains arrays at any depth.

    Raises:
        ValueError: If ``batch`` contains no array with at least one dimension.
    """
    found = _first_length(batch)
    if found is None:
        raise ValueError(
            f"batch must contain an array with at least one dimension, got {type(batch).__name__}; "
            "pass weight=, the number of samples of a batch"
        )
    return found


def _first_length(item: Any) -> int | None:
    shape = getattr(item, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(item, Mapping):
        item = list(item.values())
    if isinstance(item, list | tuple):
        return next((found for part in item if (found := _first_length(part)) is not None), None)
    return None
