"""JAX primitive for collectives in compiled programs, including its differentiation and vmap rules.

This module also loads the native library that programs call (bindings/jax), installs the hook that orders a program's
calls, and converts JAX's errors to Horovod's: JAX raises one of two types for the same failure.

The primitive runs collectives on any number of arrays. It is executed even if its results are unused, because other
ranks can use theirs. ``ordering`` defines the order of calls in a program; bindings/jax executes them.
"""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import numpy as jnp
from jax._src import traceback_util
from jax._src.interpreters import mlir as jax_mlir
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe
from jaxlib.mlir import ir

from horovod._core import (
    KIND_ALLGATHER,
    KIND_ALLREDUCE,
    KIND_ALLTOALL,
    KIND_BARRIER,
    KIND_BROADCAST,
    KIND_REDUCESCATTER,
)
from horovod._jax.foreign import PASS_ON, TARGET, UNORDERED, Arrays, create
from horovod._jax.ordering import order
from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError
from horovod.common.frontends import library_path
from horovod.common.ops import WITHOUT_GRADIENT, Average, Sum, check_differentiable
from horovod.common.process_sets import by_id

try:
    from jax import ffi
except ImportError:
    # Before JAX 0.5, ffi is in jax.extend.
    from jax.extend import ffi

_LIBRARY = "horovod._jax._jax"
_TANGENT = ".tangent"


# JAX before 0.6 has no jax.typeof.
_aval = jax.typeof if hasattr(jax, "typeof") else jax.core.get_aval


def _require_cpu() -> None:
    """Check that JAX compiles for the CPU, the only supported platform.

    Raises:
        NotImplementedError: If programs would run on another platform. The message names it.
    """
    device = jax.config.jax_default_device
    platform = jax.default_backend() if device is None else getattr(device, "platform", device)
    if platform != "cpu":
        raise NotImplementedError(
            f"the platform of a program with collectives must be 'cpu', got {platform!r}; set JAX_PLATFORMS=cpu"
        )


@functools.lru_cache(maxsize=1)
def _register() -> None:
    """Load the native library, connect it to the engine, and register it with XLA. Runs once per process.

    Raises:
        ImportError: If the library cannot be loaded or has a different version than this package.
    """
    from horovod import _core

    try:
        library = ctypes.CDLL(str(library_path(_LIBRARY)))
    except (ImportError, OSError) as error:
        raise ImportError(f"the library for JAX cannot be loaded: {error}") from error
    library.hvd_jax_attach.argtypes = [ctypes.c_size_t]
    if library.hvd_jax_attach(_core.frontend_api()) != 0:
        raise ImportError(f"{_LIBRARY} and horovod._core must have the same version; reinstall Horovod")
    ffi.register_ffi_target(TARGET, ffi.pycapsule(library.hvd_jax_collective), platform="cpu")


class _Lowered(threading.local):
    calls = 0
    """Number of calls that this thread has lowered."""


_lowered = _Lowered()


def _lower_call(arrays: Arrays) -> list[Any]:
    """Lower a call to MLIR and return its results."""
    _lowered.calls += 1
    return list(create(arrays, [], UNORDERED).results)[:-1]


def _install_ordering() -> None:
    """Patch JAX to order the collectives of every program. Runs once per process.

    The patched function `lower_jaxpr_to_module` calls `order` last. JAX has no public hook for a complete program, but
    all supported versions call this function whenever they compile a program. In other versions, calls keep the target
    `foreign.UNORDERED`, which XLA does not know. XLA then rejects the program instead of running it without an order.
    """
    plain = jax_mlir.lower_jaxpr_to_module

    @functools.wraps(plain)
    def lower_jaxpr_to_module(*args: Any, **kwargs: Any) -> Any:
        before = _lowered.calls
        result = plain(*args, **kwargs)
        if _lowered.calls != before:
            order(result.module)
        return result

    jax_mlir.lower_jaxpr_to_module = lower_jaxpr_to_module
    # Hide this function in the tracebacks of user programs.
    traceback_util.register_exclusion(__file__)


@dataclass(frozen=True)
class Call:
    """Parameters of a collective in a compiled program. ``_core.pyi`` defines the integer codes."""

    kind: int
    """Kind of collective. KIND_BARRIER returns the arrays unchanged when all ranks have arrived."""
    names: tuple[str, ...]
    """Operation name of each array, or "" to match arrays by the order in which programs run."""
    groups: tuple[str, ...]
    """Name of each array's group, or "" if the array is in no group."""
    op: int
    process_set: int
    frontend: int
    root: int = 0
    """For a broadcast, the root's world rank. For an allgather, -1 if ranks can send different numbers of rows."""
    prescale: float = 1.0
    postscale: float = 1.0
    wire: int = 0
    steps: str = ""
    """If not "" and the call is in a branch, ranks compare under this name how many times they have reached it."""
    rows: tuple[int, ...] = ()
    """Size of dimension 0 of each result. Empty if the sizes are equal to the arguments'."""
    sums: bool = False
    """True if the gradient of an allgather is the sum of the ranks' gradients, not their average.

    This holds for an allgather that is itself a derivative.
    """

    def of(self, some: Sequence[int], **changes: Any) -> "Call":
        """Return a copy of the call for the arrays at indices ``some``, with the given fields replaced."""
        chosen = {
            "names": tuple(self.names[i] for i in some),
            "groups": tuple(self.groups[i] for i in some),
            "rows": tuple(self.rows[i] for i in some) if self.rows else (),
        }
        return replace(self, **{**chosen, **changes})

    def renamed(self, rename: Any, **changes: Any) -> "Call":
        """Return a copy of the call with ``rename`` applied to all names and groups.

        ``changes`` contains new values for other fields.
        """
        names, groups = (tuple(text and rename(text) for text in texts) for texts in (self.names, self.groups))
        return replace(self, names=names, groups=groups, **changes)

    def numbers(self, i: int) -> tuple[int, ...]:
        """Return the integer codes of array i, in the order that call.cc expects."""
        kind = PASS_ON if self.kind == KIND_BARRIER and i > 0 else self.kind
        return kind, self.frontend, self.op, self.root, self.process_set, self.wire


def is_traced(arrays: Sequence[Any]) -> bool:
    """Return True if any of the arrays is traced, that is, part of a program being compiled."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def run(call: Call, arrays: Sequence[Any]) -> list[Any]:
    """Run a collective on concrete arrays, or add it to the program being compiled.

    The derivative of a reduction is the same reduction of tangents or gradients. Min, Max and Product have no
    derivative. The gradient of a broadcast is the average on the root and zero on other ranks. The gradient of an
    allgather is this rank's rows of the average.

    If a collective fails at run time, JAX raises an error with Horovod's message. It is a jax.errors.JaxRuntimeError,
    which is a RuntimeError, or a ValueError, depending on how JAX called the program.

    Raises:
        NotImplementedError: If the device is not a CPU.
        ImportError: If the library cannot be loaded.
        ValueError: If a name contains a line end.
    """
    _require_cpu()
    _register()
    if any("\n" in name for name in (*call.names, *call.groups)):
        raise ValueError(f"names of tensors must not contain line ends, got {call.names!r}")
    return list(_primitive.bind(*arrays, call=call)) if arrays else []


# Do not declare a side effect for the primitive, because that would cost about 15 us per argument and result in each
# call of a program. Instead, the function `_keep` prevents JAX from dropping calls whose results are unused.
_primitive = Primitive("horovod_collective")
_primitive.multiple_results = True


@_primitive.def_impl
def _outside_of_programs(*arrays: Any, call: Call) -> list[Any]:
    # If jit is disabled, bind() would call this function again and recurse infinitely.
    with jax.disable_jit(False):
        return _program(call)(*arrays)


@functools.lru_cache(maxsize=1024)
def _program(call: Call) -> Any:
    return jax.jit(lambda *arrays: _primitive.bind(*arrays, call=call))


@_primitive.def_abstract_eval
def _shapes(*arrays: Any, call: Call) -> list[Any]:
    firsts = [(rows,) for rows in call.rows] or [array.shape[:1] for array in arrays]
    return [
        jax.core.ShapedArray((*first, *array.shape[1:]), array.dtype)
        for first, array in zip(firsts, arrays, strict=True)
    ]


def _lower(context: Any, *operands: Any, call: Call) -> Any:
    numbers = [call.numbers(i) for i in range(len(operands))]
    scales = [(float(call.prescale), float(call.postscale))] * len(operands)
    types = [
        ir.RankedTensorType.get(aval.shape, ir.RankedTensorType(value.type).element_type)
        for aval, value in zip(context.avals_out, operands, strict=True)
    ]
    return _lower_call(
        Arrays(list(operands), types, list(call.names), list(call.groups), numbers, scales, [call.steps])
    )


# Disable the cache. In some versions of JAX, a cached lowering wraps each call in a function, and XLA would serialize
# these functions.
try:
    mlir.register_lowering(_primitive, _lower, platform="cpu", cacheable=False)
except TypeError:
    # JAX before 0.6 never caches lowerings, so it has no argument `cacheable`.
    mlir.register_lowering(_primitive, _lower, platform="cpu")
_install_ordering()


def _keep(used: list[bool], equation: Any) -> tuple[list[bool], Any]:
    return [True] * len(equation.invars), equation


pe.dce_rules[_primitive] = _keep


def _derivative(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> tuple[list[Any], list[Any]]:
    results = _primitive.bind(*primals, call=call)
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero and t.dtype != jax.dtypes.float0]
    moved: list[Any] = [ad.Zero(_aval(result).to_tangent_aval()) for result in results]
    if moving and call.kind == KIND_ALLREDUCE and call.op in WITHOUT_GRADIENT:
        for i in moving:
            moved[i] = _no_derivative.bind(tangents[i], call=call)
    elif moving:
        part = call.of(moving).renamed(lambda name: name + _TANGENT)
        for i, tangent in zip(moving, _primitive.bind(*(tangents[i] for i in moving), call=part), strict=True):
            moved[i] = tangent
    return results, moved


ad.primitive_jvps[_primitive] = _derivative

# Placeholder for the tangent of a reduction that has no derivative. It raises an error only if it is used, because JAX
# also requests tangents that no gradient needs, for example of metrics, and drops them later.
_no_derivative = Primitive("horovod_no_derivative")


def _refuse(*_: Any, call: Call, **__: Any) -> Any:
    check_differentiable(f"gradient of allreduce {', '.join(filter(None, call.names))}".rstrip(), call.op)


_no_derivative.def_impl(_refuse)
_no_derivative.def_abstract_eval(lambda tangent, *, call: tangent)
ad.primitive_transposes[_no_derivative] = _refuse
mlir.register_lowering(_no_derivative, _refuse)
batching.primitive_batchers[_no_derivative] = lambda arrays, dims, *, call: (
    _no_derivative.bind(*arrays, call=call),
    dims[0],
)


def _gradients(cotangents: Sequence[Any], *arrays: Any, call: Call) -> list[Any]:
    given = [ad.instantiate_zeros(gradient) for gradient in cotangents]
    shapes = [(array.aval if ad.is_undefined_primal(array) else array).shape for array in arrays]
    call = call.renamed(lambda name: f"{name.removesuffix(_TANGENT)}.gradient")
    return _GRADIENTS[call.kind](call, given, shapes)


ad.primitive_transposes[_primitive] = _gradients


def _of_same_kind(call: Call, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    rows = tuple(shape[0] for shape in shapes) if call.rows else ()
    return _primitive.bind(*inputs, call=replace(call, rows=rows))


def _averaged(call: Call, inputs: Sequence[Any], process_set: Any) -> list[Any]:
    op = Sum if call.sums else Average
    reduction = replace(call, kind=KIND_ALLREDUCE, op=op, rows=(), root=0, sums=False)
    return _primitive.bind(*inputs, call=reduction)


def _of_broadcast(call: Call, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    ranks = _set(call)
    reduced = _averaged(call, inputs, ranks)
    # The gradient is zero on ranks other than the root. Derive this zero from `reduced`, so that every rank takes part
    # in the second derivative.
    is_root = ranks.ranks[ranks.rank()] == call.root
    return [jnp.where(is_root, gradient, jnp.zeros_like(gradient)) for gradient in reduced]


def _of_allgather(call: Call, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    ranks = _set(call)
    rank = ranks.rank()
    reduced = _averaged(call, inputs, ranks)
    return [whole[rank * shape[0] : (rank + 1) * shape[0]] for whole, shape in zip(reduced, shapes, strict=True)]


def _of_reducescatter(call: Call, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    scale = call.prescale * call.postscale * (_set(call).size() if call.op == Sum else 1)
    rows = tuple(shape[0] for shape in shapes)
    whole = {"prescale": 1.0, "postscale": 1.0, "op": Sum, "wire": 0}
    gather = replace(call, kind=KIND_ALLGATHER, rows=rows, root=-1, sums=True, **whole)
    return [gathered * scale for gathered in _primitive.bind(*inputs, call=gather)]


_GRADIENTS = {
    KIND_ALLREDUCE: _of_same_kind,
    KIND_ALLTOALL: _of_same_kind,
    KIND_BARRIER: _of_same_kind,
    KIND_BROADCAST: _of_broadcast,
    KIND_ALLGATHER: _of_allgather,
    KIND_REDUCESCATTER: _of_reducescatter,
}


def _set(call: Call) -> Any:
    found = by_id(call.process_set)
    if found is None or found.rank() is None:
        raise ValueError(f"gradient of {call.names}: process set {call.process_set} was removed, or is of other ranks")
    return found


def _batched(arrays: Sequence[Any], dims: Sequence[Any], *, call: Call) -> tuple[list[Any], list[Any]]:
    """Move vmap's batch dimension to dimension 1, because dimension 0 must remain the row dimension."""
    if call.rows:
        arrays = [
            array if dim is None else jnp.moveaxis(array, dim, 1) for array, dim in zip(arrays, dims, strict=True)
        ]
        dims = [dim if dim is None else 1 for dim in dims]
    return _primitive.bind(*arrays, call=call), list(dims)


batching.primitive_batchers[_primitive] = _batched


# Text that all error messages about disagreeing ranks contain (Code::mismatch in C++).
_DISAGREE = "ranks disagree about"
# Beginning of error messages of bindings/jax, after the status that XLA prepends.
_MARK = "horovod: "


@contextlib.contextmanager
def converted_errors() -> Iterator[None]:
    """Return a context manager that converts JAX errors of failed collectives to HorovodInternalError.

    Raises:
        HorovodInternalError: If a collective failed.
        RuntimeError: If the error has another cause. It is raised unchanged.
        ValueError: If the error has another cause. It is raised unchanged.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        _, mark, text = str(error).partition(_MARK)
        if not mark or isinstance(error, HorovodInternalError):
            raise
        raise (RanksDisagreeError if _DISAGREE in text else HorovodInternalError)(text) from error


def convert_errors(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``func`` to convert JAX errors of failed collectives to HorovodInternalError."""

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Any:
        with converted_errors():
            return func(*args, **kwargs)

    return translated
