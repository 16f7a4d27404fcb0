"""Adapters of the frontends: how the cases create tensors, call functions and read results.

An adapter is a class with the attributes and methods of ``Adapter``. Its attributes describe what the frontend
supports without importing its framework. Its methods run on every rank, in a process of the kind ``kind``. To
change how a function is called, override ``call``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tests.conformance.cases import DTYPES, FUNCTIONS, Offer
from tests.pool import JAX, KERAS, MXNET, PLAIN, TENSORFLOW, TORCH, Kind

_NOT_ASYNC = ("allreduce", "grouped_allreduce", "allgather", "grouped_allgather", "broadcast", "alltoall")
_SCATTERS = ("reducescatter", "grouped_reducescatter")
_WITHOUT_64_BITS = tuple(d for d in DTYPES if "64" not in d)  # JAX has 64-bit types only if they are enabled
_WHEN_OPS_RUN = frozenset(("root outside", "splits that do not fit"))
_KERAS_LACKS = frozenset(("process_set", "reducescatter: prescale_factor"))


class Adapter:
    """Base class of all adapters, and the adapter of horovod.numpy."""

    name: ClassVar[str] = "numpy"
    """Column in the matrix: the module, ``horovod.numpy``, and how it is used where that matters."""
    module: ClassVar[str] = "horovod.numpy"
    kind: ClassVar[Kind] = PLAIN
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules without which the frontend's tests are skipped."""
    offer: ClassVar[Offer] = Offer()

    @cached_property
    def hvd(self) -> Any:
        return importlib.import_module(self.module)

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a tensor with the values of ``array`` in memory of its own."""
        return array.copy()

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Return a tensor's values; bfloat16 as ml_dtypes' type."""
        return np.asarray(tensor)

    def call(self, function: str, tensor: Any, **arguments: Any) -> Any:
        """Call ``function`` of the frontend with a tensor, or a list of tensors for grouped operations.

        A blocking function returns the result, the others a handle for ``wait``.
        """
        return getattr(self.hvd, function)(tensor, **arguments)

    def wait(self, handle: Any) -> Any:
        return self.hvd.synchronize(handle)

    def unsupported(self) -> Any:
        """Return a tensor of a dtype that is not supported, complex64."""
        return self.make(np.ones(3, np.complex64))

    @property
    def argument_errors(self) -> tuple[type[BaseException], ...]:
        """Return the exception types raised for a bad argument."""
        return (ValueError,)

    @property
    def disagreeing(self) -> tuple[type[BaseException], ...]:
        """Return the exception types raised when ranks disagree."""
        return (self.hvd.HorovodInternalError,)


class Torch(Adapter):
    name = "torch"
    module = "horovod.torch"
    kind = TORCH
    needs = ("torch",)

    @cached_property
    def torch(self) -> Any:
        return importlib.import_module("torch")

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype.name == "bfloat16":
            return self.torch.tensor(array.astype(np.float32)).bfloat16()
        return self.torch.from_numpy(array.copy())

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        if tensor.dtype is not self.torch.bfloat16:
            return np.asarray(tensor.detach().numpy())
        import ml_dtypes

        return np.asarray(tensor.detach().float().numpy().astype(ml_dtypes.bfloat16))


class TensorFlow(Adapter):
    name = "tensorflow"
    module = "horovod.tensorflow"
    kind = TENSORFLOW
    needs = ("tensorflow",)
    offer = Offer((*_NOT_ASYNC, *_SCATTERS), anonymous=_WHEN_OPS_RUN)

    @cached_property
    def tf(self) -> Any:
        return importlib.import_module("tensorflow")

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        return self.tf.constant(array)

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        return np.asarray(tensor.numpy())

    @property
    def argument_errors(self) -> tuple[type[BaseException], ...]:
        return (ValueError, self.tf.errors.InvalidArgumentError)

    @property
    def disagreeing(self) -> tuple[type[BaseException], ...]:
        return (self.tf.errors.OpError,)


class InFunction(TensorFlow):
    """TensorFlow within a tf.function."""

    name = "tensorflow, in a tf.function"

    def call(self, function: str, tensor: Any, **arguments: Any) -> Any:
        whole: Callable[..., Any] = self.tf.function(
            lambda t: getattr(self.hvd, function)(t, **arguments), autograph=False
        )
        return whole(tensor)


class Keras(TensorFlow):
    """Keras on a backend whose tensors NumPy can read."""

    name = "keras, on tensorflow"
    module = "horovod.keras"
    kind = KERAS["tensorflow"]
    needs = ("keras", "tensorflow")
    offer = Offer(
        ("allreduce", "allgather", "broadcast", "reducescatter"), DTYPES, _KERAS_LACKS, anonymous=_WHEN_OPS_RUN
    )


class KerasTorch(Torch):
    name = "keras, on torch"
    module = "horovod.keras"
    kind = KERAS["torch"]
    needs = ("keras", "torch")
    offer = replace(Keras.offer, anonymous=frozenset())


class Jax(Adapter):
    """JAX outside of compiled programs."""

    name = "jax"
    module = "horovod.jax"
    kind = JAX
    needs = ("jax",)
    offer = Offer((*_NOT_ASYNC, *_SCATTERS), _WITHOUT_64_BITS)

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        return importlib.import_module("jax.numpy").asarray(array)


class InProgram(Jax):
    """JAX within a compiled program."""

    name = "jax, in a compiled program"
    offer = replace(Jax.offer, uneven=False)

    def call(self, function: str, tensor: Any, **arguments: Any) -> Any:
        jax = importlib.import_module("jax")
        whole = jax.jit(lambda t: getattr(self.hvd, function)(t, **arguments))
        return jax.block_until_ready(whole(tensor))

    @property
    def disagreeing(self) -> tuple[type[BaseException], ...]:
        return (ValueError, RuntimeError)  # JAX chooses between them by how it called the program


class KerasJax(Jax):
    name = "keras, on jax"
    module = "horovod.keras"
    kind = KERAS["jax"]
    needs = ("keras", "jax")
    offer = Offer(Keras.offer.functions, _WITHOUT_64_BITS, _KERAS_LACKS)


class MXNet(Adapter):
    """Arrays of mx.np, which support scalars and empty arrays; mx.nd for bfloat16, which mx.np lacks."""

    name = "mxnet"
    module = "horovod.mxnet"
    kind = MXNET
    needs = ("mxnet", "ml_dtypes")
    offer = Offer(
        (*(f for f in FUNCTIONS if "_async" not in f),),
        tuple(d for d in DTYPES if d not in ("uint16", "int16")),  # MXNet's Python API has no names for these
        frozenset(("complex64",)),
    )

    @cached_property
    def mx(self) -> Any:
        return importlib.import_module("mxnet")

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        with self.mx.util.np_shape(True):
            if array.dtype.name != "bfloat16":
                return self.mx.np.array(array, dtype=array.dtype)
            wide = self.mx.nd.array(array.astype(np.float32).reshape(-1))  # MXNet cannot cast scalars
            return self.mx.nd.amp_cast(wide, dtype=np.dtype([("bfloat16", np.uint16)])).reshape(array.shape)

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        with self.mx.util.np_shape(True):
            if "bfloat16" not in str(tensor.dtype):
                return np.asarray(tensor.asnumpy())
            import ml_dtypes

            wide = self.mx.nd.amp_cast(tensor.reshape((-1,)), dtype="float32").asnumpy()
            return np.asarray(wide.reshape(tensor.shape).astype(ml_dtypes.bfloat16))

    def call(self, function: str, tensor: Any, **arguments: Any) -> Any:
        with self.mx.util.np_shape(True):
            result = super().call(function, tensor, **arguments)
            for one in result if isinstance(result, list | tuple) else [result]:
                one.wait_to_read()  # raises the operation's error
            return result


ALL: tuple[type[Adapter], ...] = (Adapter, Torch, TensorFlow, InFunction, Jax, InProgram, Keras, KerasTorch, KerasJax)
"""Columns of the matrix, in order."""
BY_NAME = {adapter.name: adapter for adapter in (*ALL, MXNet)}
"""All adapters by name, including those with a separate environment (tests/mxnet/test_conformance.py)."""
