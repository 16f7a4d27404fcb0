"""The part that differs between Keras' backends: an adapter module for each, found by name.

An adapter (``backend_tensorflow``, ``backend_torch``, ``backend_jax``) is a module that defines the names of
``Adapter``. Tensors are the backend's own, eager or within whatever the backend traces; variables are those of the
Keras in use.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from horovod.common.process_sets import ProcessSet

BACKENDS = ("tensorflow", "torch", "jax")


class Adapter(Protocol):
    """What an adapter module defines."""

    basics: Any
    """The ``HorovodBasics`` of the framework's face: its init, rank, ... become those of the Keras face."""
    face: Any
    """The ``Face`` of ``horovod.common.faces`` whose operations these are."""
    Compression: Any
    """The choices for ``compression=``: at least ``none`` and ``fp16``, classes with static ``compress(tensor) ->
    (tensor, context)`` and ``decompress(tensor, context)``."""

    def shutdown(self) -> None:
        """Leaves the job."""

    # Three that an adapter may leave out: ``errors_as_ours(func)``, see ``run_fn``; ``new_epoch()``, called when
    # ``hvd.elastic.run`` has joined another epoch; ``builds_later()``: True where optimizers get their variables only
    # in the first step.

    def reduce_gradients(
        self,
        grads: Sequence[Any],
        names: Sequence[str],
        *,
        op: int,
        prescale: float,
        postscale: float,
        compression: Any,
        sparse_as_dense: bool,
        groups: Sequence[Sequence[int]] | None,
        process_set: ProcessSet,
    ) -> list[Any]:
        """The reduced gradients, in order. This rank is a member of ``process_set``.

        ``grads``: without None. ``names``: one each, equal on all ranks. ``op``: Average, Sum or Max. ``prescale``,
        ``postscale``: factors before and after, Average's division not among them. ``groups``: positions in ``grads``
        of those that are reduced together; each position at most once, those in no group go alone.

        An adapter with ``STEPS_SEEN = True`` is called once for each step, not traced, and has ``watch_data()``, from
        which on waits for data are counted (``horovod.common.steps``). One with ``WANTS_VARIABLES = True`` also gets
        ``variables``, those that the gradients belong to.
        """

    def scale(self, grad: Any, factor: float) -> Any:
        """``grad`` times ``factor``, sparse gradients too."""

    def divided_by_size(self, grad: Any, process_set: ProcessSet) -> Any:
        """``grad`` divided by the number of ranks of the set as it is when a step runs, sparse gradients too."""

    def key(self, variable: Any) -> Any:
        """Something hashable by which a variable is known, whichever of its wrappers is given."""

    def allreduce(
        self, value: Any, name: str | None, op: int, prescale: float, postscale: float, compression: Any
    ) -> Any:
        """The reduction of ``value``, a tensor or what becomes one, as a tensor. ``compression``: a compressor, whose
        ``wire_format``, if it has one, the engine is told."""

    def allgather(self, value: Any, name: str | None) -> Any:
        """All ranks' values, joined along dim 0."""

    def broadcast(self, value: Any, root_rank: int, name: str | None) -> Any:
        """The root's value."""

    def reducescatter(self, value: Any, name: str | None, op: int) -> Any:
        """This rank's part, along dim 0, of the reduction."""

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> None:
        """Assigns the root's values to ``variables``, which are given in the same order on all ranks."""

    def kept(self, variable: Any, into: Any) -> Any:
        """The value that ``variable`` has now, whatever becomes of it, as ``variable.assign`` takes it. ``into``: what
        this gave for the variable before, which is not needed any more; or None."""

    def convert(self, value: Any) -> Any:
        """``value``, a number, an array or a tensor, as a tensor."""


def load(name: str) -> Any:
    """The adapter of a Keras backend. ImportError, naming the accepted ones, when there is none."""
    if name not in BACKENDS:
        raise ImportError(f"Horovod does not work with the Keras backend {name!r}; accepted are {', '.join(BACKENDS)}")
    return importlib.import_module(f"horovod._keras.backend_{name}")
