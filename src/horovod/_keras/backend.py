"""The Keras module and backend of this process, and the interface of the adapters for backends.

The first functions differ between Keras 3 and Keras 2 (tf_keras, or TensorFlow up to 2.15).

An adapter (``backend_tensorflow``, ``backend_torch``, ``backend_jax``) is a module that defines the functions of
``Adapter``. In these functions, tensors are tensors of the backend, eager or traced. Variables are Keras variables.
"""

import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Any, Protocol

from horovod.common.process_sets import ProcessSet


def import_keras() -> Any:
    """Return the Keras module used by this process.

    Raises:
        ImportError: If Keras is not installed, or Keras 2 was requested and is not installed.
    """
    wanted = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if wanted and importlib.util.find_spec("tf_keras") is not None:
        return importlib.import_module("tf_keras")
    try:
        keras = importlib.import_module("keras")
    except ImportError as error:
        raise ImportError(f"Keras cannot be imported ({error}); install it with: pip install keras") from error
    if wanted and not is_legacy(keras):
        raise ImportError(
            "TF_USE_LEGACY_KERAS selects Keras 2, which is missing; install it with: pip install tf-keras"
        )
    return keras


def is_legacy(keras: Any) -> bool:
    """Return True if this module is Keras 2."""
    return int(str(keras.__version__).split(".")[0]) < 3


def keras_of(optimizer: Any, default: Any) -> Any:
    """Return the Keras module of an optimizer, because a program can use both tf_keras and Keras 3."""
    modules = {kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__}
    for name in ("tf_keras", "keras"):
        if name in modules:
            return importlib.import_module(name)
    return default


def backend_of(keras: Any) -> str:
    """Return the name of the backend that this Keras module uses."""
    return "tensorflow" if is_legacy(keras) else str(keras.config.backend())


def build_optimizer(optimizer: Any, model: Any) -> None:
    """Create the variables of an optimizer that has not taken a step, so that they exist on all ranks.

    Args:
        optimizer: A Keras optimizer, or None.
        model: Built model whose trainable variables the optimizer updates.
    """
    trained = model.trainable_variables
    if optimizer is None or getattr(optimizer, "built", False) or not trained:
        return
    if hasattr(optimizer, "build"):
        optimizer.build(trained)
    elif hasattr(optimizer, "_create_all_weights"):  # Legacy optimizers of Keras 2 have no build method.
        optimizer._create_all_weights(trained)


def legacy_rates(optimizer: Any) -> list[Any]:
    """Return the hyperparameter variables of a legacy Keras 2 optimizer, which ``variables`` omits."""
    plain = getattr(optimizer, "inner_optimizer", optimizer)
    values = getattr(plain, "_hyper", None)
    return [values[name] for name in sorted(values) if hasattr(values[name], "assign")] if values else []


def dtype_name(variable: Any) -> str:
    """Return the name of a Keras or TensorFlow variable's dtype, such as "float32"."""
    return str(getattr(variable.dtype, "name", variable.dtype))


# Adapters for backends.

BACKENDS = ("tensorflow", "torch", "jax")


class Adapter(Protocol):
    """Interface of an adapter module: functions and constants that every adapter module defines."""

    basics: Any
    """``HorovodBasics`` of the framework's frontend; its init, rank, ... are also those of the Keras frontend."""
    frontend: Any
    """``Frontend`` of ``horovod.common.frontends`` that submits the operations."""
    Compression: Any
    """Choices for ``compression=``: at least ``none`` and ``fp16``.

    Each is a class with static methods ``compress(tensor) -> (tensor, context)`` and ``decompress(tensor, context)``.
    """

    def shutdown(self) -> None:
        """Shut down Horovod in this process."""

    # An adapter can also define three optional functions. ``convert_errors(func)`` decorates a function to raise
    # HorovodInternalError for failed collectives. ``new_epoch()`` is called after ``hvd.elastic.run`` has joined a new
    # epoch. ``builds_later()`` returns True if optimizers create their variables only in the first step.

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
        """Return the gradients, reduced over the ranks, in the same order.

        An adapter with ``STEPS_SEEN = True`` is called once per step, not only while tracing. Such an adapter has a
        function ``watch_data()``, which starts measuring waits for data (``common/training_loop/steps.py``). An adapter
        with ``WANTS_VARIABLES = True`` also gets ``variables``, the variables of the gradients.

        Args:
            grads: Gradients, none of them None.
            names: Name of each gradient, the same on all ranks.
            op: Average, Sum or Max.
            prescale: Factor before the reduction.
            postscale: Factor after the reduction, without Average's division.
            compression: Compressor.
            sparse_as_dense: True to convert sparse gradients to dense ones.
            groups: Positions in ``grads`` that are reduced together, each at most once. Other gradients are reduced
                alone.
            process_set: Ranks that take part.
        """

    def weighing(self) -> Any:
        """Return the backend's module, its cast function, and a function that converts a gradient to a dense tensor."""

    def scale(self, grad: Any, factor: float) -> Any:
        """Return ``grad * factor``. ``grad`` can be dense or sparse."""

    def divided_by_size(self, grad: Any, process_set: ProcessSet) -> Any:
        """Divide a dense or sparse gradient by the size of the process set. The size is read at run time."""

    def key(self, variable: Any) -> Any:
        """Return a hashable key shared by a variable and its wrappers."""

    def allreduce(
        self,
        value: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        compression: Any,
        weight: Any = None,
    ) -> Any:
        """Reduce ``value`` over all ranks and return the result as a tensor.

        If the compressor has a ``wire_format``, the engine compresses the data.
        """

    def allgather(self, value: Any, name: str | None) -> Any:
        """Concatenate the values of all ranks along dimension 0."""

    def broadcast(self, value: Any, root_rank: int, name: str | None) -> Any:
        """Broadcast the root's value to all ranks, and return it."""

    def reducescatter(self, value: Any, name: str | None, op: int) -> Any:
        """Reduce ``value`` over all ranks and return this rank's part of the result along dimension 0."""

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> None:
        """Overwrite ``variables`` with the root's values. All ranks must pass them in the same order."""

    def snapshot(self, variable: Any, into: Any) -> Any:
        """Return a snapshot of the variable's value that ``variable.assign`` accepts.

        ``into`` is an earlier snapshot of this variable whose memory can be reused, or None.
        """

    def convert(self, value: Any) -> Any:
        """Convert a number, an array or a tensor to a tensor of this backend."""


def load(name: str) -> Any:
    """Return the adapter module for a Keras backend.

    Raises:
        ImportError: If the backend is not supported. The message names the supported backends.
    """
    if name not in BACKENDS:
        raise ImportError(f"the Keras backend must be one of {', '.join(BACKENDS)}, got {name!r}; set KERAS_BACKEND")
    return importlib.import_module(f"horovod._keras.backend_{name}")
