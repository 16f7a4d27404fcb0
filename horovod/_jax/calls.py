"""Collectives inside programs that JAX compiles: calls of a foreign function (bindings/jax) of XLA on the CPU.

One call takes any number of arrays, announces all of them to the engine and returns when all are done. XLA runs calls
of one program one after another, so two calls that ranks make in different orders wait for each other until the
engine's stall check speaks; a step therefore makes one call with all of its gradients.
"""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from horovod.common.faces import KERAS
from horovod.common.native import library_path
from horovod.common.ops import Average

try:
    from jax import ffi
except ImportError:  # before jax 0.5
    from jax.extend import ffi

_TARGET = "horovod_collective"
_LIBRARY = "horovod._jax._jax"


@dataclass(frozen=True)
class Call:
    """What a compiled program has to know of a call: all but the arrays. Numbers are those of horovod/_core.pyi."""

    kind: int
    names: tuple[str, ...]
    """Full names, one for each array; "": matched by the order in which programs run."""
    groups: tuple[str, ...]
    """For each array the name of its group, or "": none."""
    op: int
    process_set: int
    face: int
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    wire: int = 0


def is_traced(arrays: Sequence[Any]) -> bool:
    """Is any of them a stand-in for a value that a program will have, and not a value?"""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def run(call: Call, arrays: Sequence[Any]) -> list[Any]:
    """The results of ``call`` for arrays of any shape, traced or not. It takes place even if nobody uses them, so that
    one rank alone may. Without derivatives.

    Raises NotImplementedError on another device than the CPU, ImportError when the library cannot be loaded. What
    fails when the program runs becomes JAX's error with our text: jax.errors.JaxRuntimeError, a RuntimeError, or
    ValueError, depending on how JAX called the program.
    """
    _prepare(call)
    results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    # For vmap: collectives know no shapes, a batch of arrays is an array.
    function = ffi.ffi_call(
        _TARGET, results, vmap_method="broadcast_all", **_options(len(arrays), "input_output_aliases")
    )
    return list(function(*arrays, **_attributes(call)))


def run_gradients(call: Call, arrays: Sequence[Any]) -> list[Any]:
    """``run`` for traced arrays whose results all ranks use alike; neither for vmap nor for derivatives.

    JAX is not told of the call's side effects, because it calls programs that have such by a slow way: about 15 us for
    every argument and result, milliseconds for a training step.
    """
    _prepare(call)
    return list(_primitive.bind(*arrays, call=call))


_primitive = Primitive("horovod_collective")
_primitive.multiple_results = True


@_primitive.def_abstract_eval
def _shapes(*arrays: Any, call: Call) -> list[Any]:
    return [jax.core.ShapedArray(array.shape, array.dtype) for array in arrays]


def _lower(context: Any, *operands: Any, call: Call) -> Any:
    rule = ffi.ffi_lowering(_TARGET, **_options(len(operands), "operand_output_aliases"))
    return rule(context, *operands, **_attributes(call))


mlir.register_lowering(_primitive, _lower, platform="cpu")


def _options(count: int, aliases: str) -> dict[str, Any]:
    return {
        # Without it XLA would merge equal calls, leave them out or move them out of loops and branches.
        "has_side_effect": True,
        # In place where XLA has no other use for the array, as for gradients; else it makes the copy.
        aliases: {i: i for i in range(count)},
    }


def _prepare(call: Call) -> None:
    _require_cpu()
    _register()
    if any("\n" in name for name in (*call.names, *call.groups)):
        raise ValueError(f"names of tensors {call.names!r}: accepted are names without line ends")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def differentiable(call: Call, *arrays: Any) -> list[Any]:
    """``run`` with gradients: for allreduce the same operation; for broadcast the average on the root, zeros
    elsewhere."""
    return run(call, arrays)


def _forward(call: Call, *arrays: Any) -> tuple[list[Any], None]:
    return differentiable(call, *arrays), None  # not run(): gradients of gradients come here too


def _backward(call: Call, _: None, gradients: Sequence[Any]) -> tuple[Any, ...]:
    # Integers have no gradient: JAX gives arrays of type float0 for them and takes None back.
    some = [i for i, g in enumerate(gradients) if g.dtype != jax.dtypes.float0]
    from horovod._core import KIND_ALLREDUCE, KIND_BROADCAST

    names = tuple(call.names[i] and f"{call.names[i]}.gradient" for i in some)
    groups = tuple(call.groups[i] and f"{call.groups[i]}.gradient" for i in some)
    reduction = replace(call, kind=KIND_ALLREDUCE, names=names, groups=groups)
    if call.kind == KIND_BROADCAST:
        reduction = replace(reduction, op=Average)
    reduced = differentiable(reduction, *(gradients[i] for i in some)) if some else []
    if call.kind == KIND_BROADCAST and KERAS.require_job().rank != call.root:
        reduced = [jnp.zeros_like(g) for g in reduced]
    result: list[Any] = [None] * len(gradients)
    for i, gradient in zip(some, reduced, strict=True):
        result[i] = gradient
    return tuple(result)


differentiable.defvjp(_forward, _backward)


def _attributes(call: Call) -> dict[str, Any]:
    numbers = {name: np.int32(getattr(call, name)) for name in ("kind", "face", "op", "root", "process_set", "wire")}
    numbers["devices"] = np.int32(jax.local_device_count())
    scales = {name: np.float64(getattr(call, name)) for name in ("prescale", "postscale")}
    return {**numbers, **scales, "names": "\n".join(call.names), "groups": "\n".join(call.groups)}


def _require_cpu() -> None:
    device = jax.config.jax_default_device
    platform = jax.default_backend() if device is None else getattr(device, "platform", device)
    if platform != "cpu":
        raise NotImplementedError(
            f"a collective in a program for JAX's platform {platform!r}: only 'cpu' is supported; set JAX_PLATFORMS=cpu"
        )


@functools.lru_cache(maxsize=1)
def _register() -> None:
    """Loads the library, gives it the engine's table and tells XLA of it; once in a process."""
    from horovod import _core

    try:
        library = ctypes.CDLL(str(library_path(_LIBRARY)))
    except (ImportError, OSError) as error:
        raise ImportError(f"the library for JAX cannot be loaded: {error}") from error
    library.hvd_jax_attach.argtypes = [ctypes.c_size_t]
    if library.hvd_jax_attach(_core.face_api()) != 0:
        raise ImportError(f"{_LIBRARY} and horovod._core are of different versions; install both anew")
    ffi.register_ffi_target(_TARGET, ffi.pycapsule(library.hvd_jax_collective), platform="cpu")
