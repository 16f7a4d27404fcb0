"""The native library of ops: loading it, joining it to the engine, and what every op made with it needs."""

import ctypes
from types import ModuleType
from typing import Any, NoReturn

import tensorflow as tf

from horovod.common.exceptions import HorovodInternalError, NotRunningError
from horovod.common.faces import TENSORFLOW as face
from horovod.common.native import library_path
from horovod.common.refusals import with_rank

try:  # private, but at this place from TensorFlow 2.13 to 2.21
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext as _in_xla_context
except ImportError:

    def _in_xla_context(graph: Any) -> bool:
        return False


LIBRARY = "horovod.tensorflow._tf"


class _Raised:
    """Makes an error of TensorFlow's from its message alone."""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)  # type: ignore[call-arg]
        self.args = (message,)

    def __reduce__(self) -> Any:
        return type(self), self.args


# Each is what TensorFlow's users catch, and what Python's users catch.


class ArgumentError(_Raised, tf.errors.InvalidArgumentError, ValueError):
    """A bad argument."""


class ReduceOpError(ArgumentError, HorovodInternalError):
    """The op of a reducescatter, for which older programs expect a RuntimeError."""


class NotInitialized(_Raised, tf.errors.FailedPreconditionError, ValueError):
    """An operation before ``init``."""


class ShutDown(_Raised, tf.errors.UnknownError, NotRunningError):
    """An operation after ``shutdown``."""


def refuse(message: str) -> NoReturn:
    """Raises ArgumentError (an InvalidArgumentError and a ValueError), which names the rank once there is one."""
    raise ArgumentError(with_rank(face, message))


def _load() -> tuple[ModuleType, ctypes.CDLL]:
    """The module of op wrappers, ``horovod_allreduce`` and so on, and the library's C functions. Raises ImportError
    naming the cause."""
    try:
        from horovod import _core

        path = str(library_path(LIBRARY))
        loaded = tf.load_op_library(path)
        library = ctypes.CDLL(path)  # the same library once more: a handle to call functions by
        library.hvd_tf_attach.argtypes = [ctypes.c_void_p]
        library.hvd_tf_attach.restype = ctypes.c_int
        library.hvd_tf_trouble.restype = ctypes.c_char_p
        library.hvd_tf_set_blocking.argtypes = [ctypes.c_int]
        failed = library.hvd_tf_attach(_core.face_api())
    except (ImportError, OSError, AttributeError, tf.errors.OpError) as error:
        raise ImportError(
            f"horovod.tensorflow cannot load its native part {LIBRARY} into TensorFlow {tf.__version__}: {error}"
        ) from error
    if failed:
        reason = library.hvd_tf_trouble().decode(errors="replace")
        raise ImportError(f"horovod.tensorflow cannot use {path} with TensorFlow {tf.__version__}: {reason}")
    return loaded, library


ops, library = _load()
"""The op wrappers that TensorFlow made for the library, and its C functions."""


def blocking() -> bool:
    """Do collectives block TensorFlow's threads, because this TensorFlow's way to run kernels asynchronously is not
    known? Ranks must then run them in one order."""
    if library.hvd_tf_blocking() < 0:
        with tf.init_scope():
            if tf.executing_eagerly():
                ops.horovod_probe()
    return library.hvd_tf_blocking() == 1


def independent(outputs: Any) -> Any:
    """``outputs`` (a tensor, or a list or tuple of them) of an op just made, which may run beside all others.

    Inside a tf.function, automatic control dependencies would run stateful ops one after another in the order of
    tracing: no fusion, and a deadlock where ranks trace in another order. Kernels that block need just that order.
    """
    tensor = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    manager = getattr(tensor.graph, "experimental_acd_manager", None)
    run_independently = getattr(manager, "run_independently", None)
    if run_independently is not None and not blocking():
        run_independently(tensor.op)
    return outputs


def check_not_compiled(operation: str) -> None:
    """Raises NotImplementedError, naming ``operation``, while a function is traced for XLA (jit_compile=True)."""
    if _in_xla_context(tf.compat.v1.get_default_graph()):
        raise NotImplementedError(
            f"{operation} cannot be compiled by XLA. Call it outside the function with jit_compile=True: compile the "
            "computation in a function of its own, and call that and the Horovod operation from a tf.function "
            "without jit_compile (Keras: compile(..., jit_compile=False))"
        )
