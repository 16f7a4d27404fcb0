"""Loader for the native op library, and helpers for creating ops."""

import ctypes
from types import ModuleType
from typing import Any, NoReturn

import tensorflow as tf

from horovod.common.exceptions import HorovodInternalError, NotRunningError
from horovod.common.frontends import TENSORFLOW as frontend
from horovod.common.frontends import library_path, with_rank

# TensorFlow 2.13 to 2.21 provide this private module at this import path.
try:
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext as _in_xla_context
except ImportError:

    def _in_xla_context(graph: Any) -> bool:
        return False


LIBRARY = "horovod.tensorflow._tf"


class _Raised:
    """Mixin that lets a TensorFlow error be constructed from a message alone."""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)  # type: ignore[call-arg]
        self.args = (message,)

    def __reduce__(self) -> Any:
        return type(self), self.args


# Programs can catch each class both as a TensorFlow error and as a standard Python error.


class ArgumentError(_Raised, tf.errors.InvalidArgumentError, ValueError):
    """Error raised for an invalid argument of an op."""


class ReduceOpError(ArgumentError, HorovodInternalError):
    """Error raised for an invalid ``op`` of a reducescatter. Older programs catch it as a RuntimeError."""


class NotInitialized(_Raised, tf.errors.FailedPreconditionError, ValueError):
    """Error raised if an operation is called before ``init``."""


class ShutDown(_Raised, tf.errors.UnknownError, NotRunningError):
    """Error raised if an operation is called after ``shutdown``."""


def refuse(message: str) -> NoReturn:
    """Raise ArgumentError with a message that names this rank, if known."""
    raise ArgumentError(with_rank(frontend, message))


def _load() -> tuple[ModuleType, ctypes.CDLL]:
    """Return the generated op wrappers, such as ``horovod_allreduce``, and the library's C functions.

    Raises:
        ImportError: If the library cannot be loaded. The message contains the reason.
    """
    try:
        from horovod import _core

        path = str(library_path(LIBRARY))
        loaded = tf.load_op_library(path)
        # Load the same library with ctypes as well, to call its C functions.
        library = ctypes.CDLL(path)
        library.hvd_tf_attach.argtypes = [ctypes.c_void_p]
        library.hvd_tf_attach.restype = ctypes.c_int
        library.hvd_tf_trouble.restype = ctypes.c_char_p
        library.hvd_tf_set_blocking.argtypes = [ctypes.c_int]
        failed = library.hvd_tf_attach(_core.frontend_api())
    except (ImportError, OSError, AttributeError, tf.errors.OpError) as error:
        raise ImportError(
            f"horovod.tensorflow cannot load its native part {LIBRARY} into TensorFlow {tf.__version__}: {error}"
        ) from error
    if failed:
        reason = library.hvd_tf_trouble().decode(errors="replace")
        raise ImportError(f"horovod.tensorflow cannot use {path} with TensorFlow {tf.__version__}: {reason}")
    return loaded, library


ops, library = _load()
"""Op wrappers that TensorFlow created for the library, and its C functions."""


def blocking() -> bool:
    """Return True if collectives block TensorFlow's threads.

    Blocking collectives must run in the same order on all ranks. They are used with TensorFlow versions whose interface
    for asynchronous kernels is unknown to Horovod.
    """
    if library.hvd_tf_blocking() < 0:
        with tf.init_scope():
            if tf.executing_eagerly():
                ops.horovod_probe()
    return library.hvd_tf_blocking() == 1


def independent(outputs: Any) -> Any:
    """Exempt a new op from automatic control dependencies.

    ``outputs`` is a tensor, or a list or tuple of tensors. In a tf.function, automatic control dependencies would run
    stateful ops one by one in the order of tracing. Serial execution would prevent fusion, and would deadlock if ranks
    trace in different orders. Blocking kernels need the traced order, so this function leaves their control
    dependencies in place.

    Returns:
        ``outputs`` itself.
    """
    tensor = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    manager = getattr(tensor.graph, "experimental_acd_manager", None)
    run_independently = getattr(manager, "run_independently", None)
    if run_independently is not None and not blocking():
        run_independently(tensor.op)
    return outputs


def check_not_compiled(operation: str) -> None:
    """Raise an error if the current function is being traced for XLA (jit_compile=True).

    Raises:
        NotImplementedError: If the function is compiled by XLA. The message names ``operation``.
    """
    if _in_xla_context(tf.compat.v1.get_default_graph()):
        raise NotImplementedError(
            f"{operation} cannot be compiled by XLA. Call it outside the function with jit_compile=True: compile the "
            "computation in a separate function, and call that and the Horovod operation from a tf.function "
            "without jit_compile (Keras: compile(..., jit_compile=False))"
        )
