"""Adapter for Keras 3 on JAX. See ``backend.Adapter`` for the functions.

Concrete values are converted to NumPy (``_arrays``). In programs that are being compiled, each collective is a foreign
function call (``_jax/calls.py``). Both send the same messages, so one rank may run eagerly while others compile.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from horovod._arrays import collectives as arrays
from horovod._arrays.collectives import Reduction
from horovod._jax import calls
from horovod._jax.compression import Compression
from horovod._jax.errors import errors_as_ours
from horovod.common.basics import HorovodBasics
from horovod.common.compression import check_wire
from horovod.common.frontends import KERAS
from horovod.common.ops import Average, Sum, wire_name
from horovod.common.process_sets import ProcessSet, global_process_set

__all__ = ["Compression", "basics", "errors_as_ours", "face", "shutdown"]

face = KERAS
basics = HorovodBasics(KERAS.name)
shutdown = basics.shutdown


def new_epoch() -> None:
    """Clear compiled programs, which contain sizes and process set ids of an epoch.

    Keras recompiles its own programs as well.
    """
    jax.clear_caches()


def reduce_gradients(
    grads: Sequence[Any],
    names: Sequence[str],
    *,
    op: int = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    groups: Sequence[Sequence[int]] | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the gradients reduced over the ranks of the set, in order. A gradient that is None stays None.

    ``groups`` are positions in ``grads`` that complete together. Errors are those of ``arrays``. In a compiled program,
    an error that can only be detected at run time becomes a JAX error.
    """
    some = [i for i, gradient in enumerate(grads) if gradient is not None]
    if not some:
        return list(grads)
    pairs = [_compressed(grads[i], names[i], compression, sparse_as_dense) for i in some]
    tensors = [tensor for tensor, _ in pairs]
    wires = [check_wire(compression, t, op, f"gradient {names[i]!r}") for i, t in zip(some, tensors, strict=True)]
    reduction = Reduction(op, process_set, prescale, postscale, wires[0])
    full_names = [wire_name("allreduce", names[i]) for i in some]
    group_names = _group_names(names, groups, some)
    if calls.is_traced(tensors):
        reduced = calls.run(_call(tensors, full_names, reduction, group_names), tensors)
    else:
        reduced = [jnp.asarray(a) for a in arrays.allreduce_all(face, tensors, full_names, reduction, group_names)]
    result = list(grads)
    for i, tensor, (_, context) in zip(some, reduced, pairs, strict=True):
        result[i] = compression.decompress(tensor, context)
    return result


def allreduce(
    value: Any,
    name: str | None = None,
    op: int = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the reduction of all ranks' values as a JAX array.

    Also usable in a compiled program. Differentiable: the gradients are reduced in the same way.
    """
    value = _array(value)
    wire = check_wire(compression, value, op, "allreduce")
    reduction = Reduction(op, process_set, prescale, postscale, wire)
    (value, context), full = compression.compress(value), wire_name("allreduce", name)
    if calls.is_traced([value]):
        reduced = calls.run(_call([value], [full], reduction, [""]), [value])[0]
    else:
        reduced = jnp.asarray(arrays.allreduce_all(face, [value], [full], reduction)[0])
    return compression.decompress(reduced, context)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return all ranks' values, concatenated along dimension 0.

    Raises:
        NotImplementedError: Called in a program that is being compiled.
    """
    names = [wire_name("allgather", name)]
    return jnp.asarray(arrays.allgather_all(face, [_value(value, "allgather")], names, process_set)[0])


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the root's value as a JAX array.

    Also usable in a compiled program. Differentiable: the gradient is the average of the ranks' gradients on the root,
    and zero elsewhere.
    """
    value, full = _array(value), wire_name("broadcast", name)
    if not calls.is_traced([value]):
        return jnp.asarray(arrays.broadcast_all(face, [value], root_rank, [full], process_set)[0])
    from horovod._core import KIND_BROADCAST

    what = full or "broadcast"
    arrays.code_of(value.dtype, what)
    number = arrays.set_id(face, process_set, what)
    root = arrays.root_of(root_rank, process_set, what)
    call = calls.Call(KIND_BROADCAST, (full,), ("",), Sum, number, KERAS.number, root=root)
    return calls.run(call, [value])[0]


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Return this rank's rows of the reduction of all ranks' values.

    Raises:
        NotImplementedError: Called in a program that is being compiled.
    """
    names, reduction = [wire_name("reducescatter", name)], Reduction(op, process_set)
    return jnp.asarray(arrays.reducescatter_all(face, [_value(value, "reducescatter")], names, reduction)[0])


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Assign the root's values to variables in the same order on all ranks; their names may differ."""
    variables = list(variables)
    names = [f"broadcast.variable.{i}" for i in range(len(variables))]
    values = [_value(v.value, "broadcast_variables") for v in variables]
    for variable, value in zip(
        variables, arrays.broadcast_all(face, values, root_rank, names, process_set), strict=True
    ):
        variable.assign(value)


def _call(tensors: Sequence[Any], full_names: Sequence[str], reduction: Reduction, groups: Sequence[str]) -> calls.Call:
    """Return the checked call of a reduction for a compiled program."""
    from horovod._core import KIND_ALLREDUCE

    for tensor, name in zip(tensors, full_names, strict=True):
        arrays.check_reduction(tensor.dtype, reduction, name or "allreduce")
    return calls.Call(
        KIND_ALLREDUCE,
        tuple(full_names),
        tuple(groups),
        reduction.op,
        arrays.set_id(face, reduction.process_set, full_names[0] or "allreduce"),
        KERAS.number,
        prescale=float(reduction.prescale),
        postscale=float(reduction.postscale),
        wire=reduction.wire,
    )


def _compressed(gradient: Any, name: str, compression: Any, sparse_as_dense: bool) -> tuple[Any, Any]:
    if hasattr(gradient, "todense"):  # jax.experimental.sparse
        if not sparse_as_dense:
            raise ValueError(
                f"gradient of {name!r} is sparse ({type(gradient).__name__}); on JAX accepted with sparse_as_dense=True"
            )
        gradient = gradient.todense()
    return compression.compress(_array(gradient))


def _group_names(names: Sequence[str], groups: Sequence[Sequence[int]] | None, some: Sequence[int]) -> list[str]:
    """Return the group name of each gradient in ``some``, "" for none."""
    group_of = {i: f"grouped_allreduce.{names[members[0]]}" for members in groups or () for i in members}
    return [group_of.get(i, "") for i in some]


def scale(grad: Any, factor: float) -> Any:
    """Return ``grad * factor`` in the dtype of ``grad``."""
    return grad * factor


def divided_by_size(grad: Any, process_set: ProcessSet) -> Any:
    """Divide by the size, a constant of compiled programs that ``new_epoch`` clears."""
    return scale(grad, 1.0 / len(process_set.ranks or (0,)))


def key(variable: Any) -> Any:
    """Return the identity of the variable, which Keras does not wrap on JAX."""
    return id(variable)


def convert(value: Any) -> Any:
    """Return a JAX array; a Keras variable is replaced by its value."""
    return jnp.asarray(getattr(value, "value", value))


def _array(value: Any) -> Any:
    return value if hasattr(value, "dtype") and not hasattr(value, "assign") else convert(value)


def _value(value: Any, operation: str) -> Any:
    value = _array(value)
    if calls.is_traced([value]):
        raise NotImplementedError(
            f"{operation} inside of a program that JAX compiles; there allreduce and broadcast work, since the shape "
            "of their results is known before"
        )
    return value


def kept(variable: Any, into: Any) -> np.ndarray[Any, Any]:
    """Return a copy: arrays are immutable, but a step may reuse their memory (donation, as in Keras)."""
    return np.array(variable.value)
