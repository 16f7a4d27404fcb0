"""The faces' adapters: how the cases make tensors, call functions and read results.

An adapter is a class with what ``Adapter`` has. What it offers is said without importing its framework; its methods run
on every rank, in a process of the kind ``kind``, and are few. To change how a function is called, override ``call``.
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
_WITHOUT_64_BITS = tuple(d for d in DTYPES if "64" not in d)  # JAX has none unless it is told to
_WHEN_OPS_RUN = frozenset(("root outside", "splits that do not fit"))
_KERAS_LACKS = frozenset(("process_set", "reducescatter: prescale_factor"))


class Adapter:
    """What the faces have in common, and NumPy's as it is."""

    name: ClassVar[str] = "numpy"
    """Its column in the matrix: that of the module, ``horovod.numpy``, and perhaps how it is used."""
    module: ClassVar[str] = "horovod.numpy"
    kind: ClassVar[Kind] = PLAIN
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules without which its tests are skipped."""
    offer: ClassVar[Offer] = Offer()

    @cached_property
    def hvd(self) -> Any:
        return importlib.import_module(self.module)

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        """A tensor with the values of ``array``, in memory of its own."""
        return array.copy()

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Its values; bfloat16 as that of ml_dtypes."""
        return np.asarray(tensor)

    def call(self, function: str, tensor: Any, **arguments: Any) -> Any:
        """``function`` of the face, for a tensor, or a list of them where it is one for groups. A blocking one returns
        the result, the others something for ``wait``."""
        return getattr(self.hvd, function)(tensor, **arguments)

    def wait(self, handle: Any) -> Any:
        return self.hvd.synchronize(handle)

    def unsupported(self) -> Any:
        """A tensor of a dtype that cannot travel, complex64."""
        return self.make(np.ones(3, np.complex64))

    @property
    def wrong(self) -> tuple[type[BaseException], ...]:
        """What is raised for a bad argument."""
        return (ValueError,)

    @property
    def disagreeing(self) -> tuple[type[BaseException], ...]:
        """What is raised when ranks disagree."""
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
    def wrong(self) -> tuple[type[BaseException], ...]:
        return (ValueError, self.tf.errors.InvalidArgumentError)

    @property
    def disagreeing(self) -> tuple[type[BaseException], ...]:
        return (self.tf.errors.OpError,)


class InFunction(TensorFlow):
    """The same inside of a tf.function."""

    name = "tensorflow, in a tf.function"

    def call(self, function: str, tensor: Any, **arguments: Any) -> Any:
        whole: Callable[..., Any] = self.tf.function(
            lambda t: getattr(self.hvd, function)(t, **arguments), autograph=False
        )
        return whole(tensor)


class Keras(TensorFlow):
    """Keras on a backend whose tensors NumPy reads."""

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
    """Outside of compiled programs."""

    name = "jax"
    module = "horovod.jax"
    kind = JAX
    needs = ("jax",)
    offer = Offer((*_NOT_ASYNC, *_SCATTERS), _WITHOUT_64_BITS)

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        return importlib.import_module("jax.numpy").asarray(array)


class InProgram(Jax):
    """The same within a program that JAX compiles."""

    name = "jax, in a compiled program"
    offer = replace(Jax.offer, uneven=False)

    def call(self, function: str, tensor: Any, **arguments: Any) -> Any:
        jax = importlib.import_module("jax")
        whole = jax.jit(lambda t: getattr(self.hvd, function)(t, **arguments))
        return jax.block_until_ready(whole(tensor))

    @property
    def disagreeing(self) -> tuple[type[BaseException], ...]:
        return (ValueError, RuntimeError)  # JAX's, depending on how it called the program


class KerasJax(Jax):
    name = "keras, on jax"
    module = "horovod.keras"
    kind = KERAS["jax"]
    needs = ("keras", "jax")
    offer = Offer(Keras.offer.functions, _WITHOUT_64_BITS, _KERAS_LACKS)


class MXNet(Adapter):
    """Arrays of mx.np, which may be scalars and without elements; of bfloat16, which those do not have, of mx.nd."""

    name = "mxnet"
    module = "horovod.mxnet"
    kind = MXNET
    needs = ("mxnet", "ml_dtypes")
    offer = Offer(
        (*(f for f in FUNCTIONS if "_async" not in f),),
        tuple(d for d in DTYPES if d not in ("uint16", "int16")),  # which MXNet's Python has no names for
        frozenset(("complex64",)),
    )

    @cached_property
    def mx(self) -> Any:
        return importlib.import_module("mxnet")

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        with self.mx.util.np_shape(True):
            if array.dtype.name != "bfloat16":
                return self.mx.np.array(array, dtype=array.dtype)
            wide = self.mx.nd.array(array.astype(np.float32).reshape(-1))  # MXNet casts no scalars
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
                one.wait_to_read()  # which tells of failures
            return result


ALL: tuple[type[Adapter], ...] = (Adapter, Torch, TensorFlow, InFunction, Jax, InProgram, Keras, KerasTorch, KerasJax)
"""Columns of the matrix, in order."""
BY_NAME = {adapter.name: adapter for adapter in (*ALL, MXNet)}
"""Also of what has an environment of its own (tests/mxnet/test_conformance.py)."""
