"""Adapter for Keras 3 on JAX. See ``backend.Adapter`` for the functions.

Concrete values are converted to NumPy (``_arrays``). In a compiled program, each collective is a foreign function call
(``_jax/calls.py``). Both paths send the same messages, so one rank can run eagerly while others run a compiled program.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from horovod._arrays import collectives as arrays
from horovod._arrays.collectives import Reduction
from horovod._jax import calls
from horovod._jax.calls import convert_errors, converted_errors
from horovod._jax.compression import Compression
from horovod.common.basics import HorovodBasics
from horovod.common.compression import check_wire
from horovod.common.frontends import KERAS
from horovod.common.ops import Average, Sum, wire_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.weights import check_weight, check_weighted_op, weighted_allreduce

__all__ = ["Compression", "basics", "convert_errors", "frontend", "shutdown"]

frontend = KERAS
basics = HorovodBasics(KERAS.name)
shutdown = basics.shutdown


def new_epoch() -> None:
    """Clear the compiled programs, which contain sizes and process set ids of the previous elastic epoch.

    Keras also recompiles its programs.
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
    """Return the gradients, reduced over the ranks of the process set, in the same order.

    Each entry of ``groups`` lists positions in ``grads`` of gradients that are reduced together. Errors are those of
    ``_arrays.collectives``, but a collective that fails while a compiled program runs raises a JAX error.
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
        reduced = [jnp.asarray(a) for a in arrays.allreduce_all(frontend, tensors, full_names, reduction, group_names)]
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
    weight: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce ``value`` over all ranks and return the result as a JAX array.

    This function works in compiled programs too. It is differentiable: its gradient is the same reduction of the output
    gradients.
    """
    value = _array(value)
    if weight is not None:
        check_weighted_op(op, weight, prescale, postscale)
        count = jnp.asarray(weight if isinstance(weight, jax.Array) else check_weight(weight))
        add = functools.partial(allreduce, op=Sum, process_set=process_set)
        how = None if compression is Compression.none else compression
        return weighted_allreduce(jnp, lambda one, dtype: one.astype(dtype), value, count, add, name, how)
    wire = check_wire(compression, value, op, "allreduce")
    reduction = Reduction(op, process_set, prescale, postscale, wire)
    (value, context), full = compression.compress(value), wire_name("allreduce", name)
    if calls.is_traced([value]):
        reduced = calls.run(_call([value], [full], reduction, [""]), [value])[0]
    else:
        reduced = jnp.asarray(arrays.allreduce_all(frontend, [value], [full], reduction)[0])
    return compression.decompress(reduced, context)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate the values of all ranks along dimension 0.

    Raises:
        NotImplementedError: If called in a program that is being compiled.
    """
    names = [wire_name("allgather", name)]
    return jnp.asarray(arrays.allgather_all(frontend, [_value(value, "allgather")], names, process_set)[0])


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Broadcast the root's value to all ranks, and return it as a JAX array.

    This function also works in compiled programs. It is differentiable: the gradient is the average of the ranks'
    gradients on the root, and zero on other ranks.
    """
    value, full = _array(value), wire_name("broadcast", name)
    if not calls.is_traced([value]):
        return jnp.asarray(arrays.broadcast_all(frontend, [value], root_rank, [full], process_set)[0])
    from horovod._core import KIND_BROADCAST

    what = full or "broadcast"
    arrays.code_of(value.dtype, what)
    number = arrays.set_id(frontend, process_set, what)
    root = arrays.root_of(root_rank, process_set, what)
    call = calls.Call(KIND_BROADCAST, (full,), ("",), Sum, number, KERAS.number, root=root)
    return calls.run(call, [value])[0]


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Reduce ``value`` over all ranks and return this rank's rows of the result.

    Raises:
        NotImplementedError: If called in a program that is being compiled.
    """
    names, reduction = [wire_name("reducescatter", name)], Reduction(op, process_set)
    return jnp.asarray(arrays.reducescatter_all(frontend, [_value(value, "reducescatter")], names, reduction)[0])


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite variables with the root's values. All ranks must pass them in the same order; names can differ."""
    variables = list(variables)
    names = [f"broadcast.variable.{i}" for i in range(len(variables))]
    values = [_value(v.value, "broadcast_variables") for v in variables]
    for variable, value in zip(
        variables, arrays.broadcast_all(frontend, values, root_rank, names, process_set), strict=True
    ):
        variable.assign(value)


def _call(tensors: Sequence[Any], full_names: Sequence[str], reduction: Reduction, groups: Sequence[str]) -> calls.Call:
    """Validate a reduction's arguments, and return the foreign function call for a compiled program."""
    from horovod._core import KIND_ALLREDUCE

    for tensor, name in zip(tensors, full_names, strict=True):
        arrays.check_reduction(tensor.dtype, reduction, name or "allreduce")
    return calls.Call(
        KIND_ALLREDUCE,
        tuple(full_names),
        tuple(groups),
        reduction.op,
        arrays.set_id(frontend, reduction.process_set, full_names[0] or "allreduce"),
        KERAS.number,
        prescale=float(reduction.prescale),
        postscale=float(reduction.postscale),
        wire=reduction.wire,
    )


def _compressed(gradient: Any, name: str, compression: Any, sparse_as_dense: bool) -> tuple[Any, Any]:
    if hasattr(gradient, "todense"):  # jax.experimental.sparse
        if not sparse_as_dense:
            raise ValueError(
                f"the gradient of {name!r} must be dense on JAX, got a {type(gradient).__name__}; set "
                "sparse_as_dense=True"
            )
        gradient = gradient.todense()
    return compression.compress(_array(gradient))


def _group_names(names: Sequence[str], groups: Sequence[Sequence[int]] | None, some: Sequence[int]) -> list[str]:
    """Return the group name of each gradient, or "" for a gradient without a group."""
    group_of = {i: f"grouped_allreduce.{names[members[0]]}" for members in groups or () for i in members}
    return [group_of.get(i, "") for i in some]


def scale(grad: Any, factor: float) -> Any:
    """Return ``grad * factor`` in the dtype of ``grad``."""
    return grad * factor


def divided_by_size(grad: Any, process_set: ProcessSet) -> Any:
    """Divide a gradient by the size of the process set.

    Compiled programs contain the size as a constant, so ``new_epoch`` discards them.
    """
    return scale(grad, 1.0 / len(process_set.ranks or (0,)))


def key(variable: Any) -> Any:
    """Return ``id(variable)``, which suffices because Keras does not wrap variables on JAX."""
    return id(variable)


def weighing() -> Any:
    """Return the functions for weighted averages; see ``backend.Adapter.weighing``."""
    return (
        jnp,
        lambda one, dtype: one.astype(dtype),
        lambda grad: grad.todense() if hasattr(grad, "todense") else grad,
    )


def convert(value: Any) -> Any:
    """Convert a value to a JAX array. The value can be a Keras variable."""
    return jnp.asarray(getattr(value, "value", value))


def _array(value: Any) -> Any:
    return value if hasattr(value, "dtype") and not hasattr(value, "assign") else convert(value)


def _value(value: Any, operation: str) -> Any:
    value = _array(value)
    if calls.is_traced([value]):
        raise NotImplementedError(
            f"{operation} cannot be called in a function that JAX compiles; only allreduce and broadcast can, because "
            "the shape of their result is known in advance"
        )
    return value


def snapshot(variable: Any, into: Any) -> np.ndarray[Any, Any]:
    """Return a copy of the value, because a Keras step can donate the original array to JAX."""
    return np.array(variable.value)


# -- failed steps of ``fit`` -----------------------------------------------------------------------------------------
#
# JAX runs steps asynchronously. If a collective in a step fails, JAX raises the error when the step's results are read,
# but Keras might never read them. Training with a distributed optimizer therefore checks the results: those of earlier
# steps as soon as they are ready, and those of all steps at the end of an epoch.
#
# JAX raises one of two exception types for a failed collective, depending on how it called the program. ``fit`` and
# ``train_on_batch`` convert both to HorovodInternalError, the error that collectives outside of compiled steps raise.


def watch(keras: Any, is_distributed: Callable[[Any], bool]) -> None:
    """Patch ``fit`` and ``train_on_batch`` so that they report failed collectives.

    Call this once per process. ``is_distributed(optimizer)`` returns True if models with this optimizer need the
    checks.
    """
    for kind in keras.Model.__mro__:
        if "make_train_function" in vars(kind) and "jax_state_sync" in vars(kind):
            kind.make_train_function = _watching(kind.make_train_function, is_distributed)
            kind.jax_state_sync = _raising(kind.jax_state_sync, is_distributed)
            return


def _watching(make: Any, is_distributed: Callable[[Any], bool]) -> Any:
    @functools.wraps(make)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = make(self, *args, **kwargs)
        step = self.train_function
        # A new call of fit is starting, so drop unread results of the previous call. They could contain an error.
        getattr(step, "_hvd_forget", lambda: None)()
        if is_distributed(getattr(self, "optimizer", None)) and not getattr(step, "_hvd_watches", False):
            self.train_function = _watched(step)
        return result

    return make_train_function


def _watched(step: Any) -> Any:
    last: list[Any] = []

    @functools.wraps(step)
    def train_function(state: Any, iterator: Any) -> Any:
        with converted_errors():
            for array in last:
                if array.is_ready():
                    # Read the results of the step. This raises an exception if the step has failed.
                    array.block_until_ready()
            last.clear()
            logs, state = step(state, iterator)
        last.extend(value for value in logs.values() if hasattr(value, "is_ready"))
        return logs, state

    train_function._hvd_watches = True  # type: ignore[attr-defined]
    train_function._hvd_forget = last.clear  # type: ignore[attr-defined]
    return train_function


def _raising(sync: Any, is_distributed: Callable[[Any], bool]) -> Any:
    @functools.wraps(sync)
    def jax_state_sync(self: Any) -> Any:
        result = sync(self)
        if is_distributed(getattr(self, "optimizer", None)):
            with converted_errors():
                for variable in self.trainable_variables:
                    # fit calls this function to clean up after a failed step. The step's arguments were donated and no
                    # longer exist. In the first step of an epoch, Keras has also emptied the variables. Reading `value`
                    # would then call their deleted initializer, and the resulting error would hide the original one.
                    value = getattr(variable, "_value", None)
                    if hasattr(value, "block_until_ready") and not value.is_deleted():
                        value.block_until_ready()
        return result

    return jax_state_sync
