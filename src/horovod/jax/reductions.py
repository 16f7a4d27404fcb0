"""Weighted and unweighted allreduce of the arrays of a pytree, for collectives and gradients."""

from collections.abc import Sequence
from typing import Any

from jax import numpy as jnp

from horovod._arrays import collectives as arrays
from horovod._arrays.collectives import Reduction
from horovod._core import KIND_ALLREDUCE
from horovod._jax import calls
from horovod._jax.compression import Compression
from horovod.common.compression import check_wire
from horovod.common.frontends import JAX as frontend
from horovod.common.ops import Sum, check_scale
from horovod.common.process_sets import ProcessSet
from horovod.common.training_loop.weights import check_weight, weighted_means
from horovod.jax.arrays import to_reduce


def reduce_leaves(
    leaves: Sequence[Any],
    names: Sequence[str],
    op: int,
    compression: Any,
    prescale: Any,
    postscale: Any,
    process_set: ProcessSet,
    grouped: bool = False,
    beside: Sequence[Any] = (),
    steps: str = "",
) -> list[Any]:
    """Allreduce named arrays, individually or as one group.

    If any array in ``beside`` is traced, the allreduce becomes part of the compiled program, even if ``leaves`` are
    constants. ``steps`` is a name, or empty. If it is a name and the call is in a branch, the ranks check that all of
    them have reached the branch the same number of times. The check is an operation with this name.

    Returns:
        The reduced arrays, in the same order.
    """
    if not leaves:
        return []
    check_scale(names[0] or "allreduce", prescale, postscale)
    wires = [check_wire(compression, leaf, op, name or "allreduce") for leaf, name in zip(leaves, names, strict=True)]
    compressed = [compression.compress(leaf) for leaf in leaves]
    scaled = (float(prescale), float(postscale)) != (1.0, 1.0)
    pairs = zip(compressed, names, strict=True)
    sent = [to_reduce(tensor, op, scaled, name or "allreduce") for (tensor, _), name in pairs]
    tensors = [tensor for tensor, _ in sent]
    reduction = Reduction(op, process_set, float(prescale), float(postscale), wires[0])
    groups = groups_of(names, grouped)
    if calls.is_traced([*tensors, *beside]):
        for tensor, name in zip(tensors, names, strict=True):
            arrays.check_reduction(tensor.dtype, reduction, name or "allreduce")
        number = arrays.set_id(frontend, process_set, names[0] or "allreduce")
        scales = {"prescale": reduction.prescale, "postscale": reduction.postscale}
        options = {"groups": tuple(groups), "op": op, "wire": reduction.wire, "steps": steps, **scales}
        call = call_of(KIND_ALLREDUCE, names, number, **options)
        reduced = calls.run(call, tensors)
    else:
        reduced = [jnp.asarray(one) for one in arrays.allreduce_all(frontend, tensors, names, reduction, groups)]
    results = zip(reduced, sent, compressed, strict=True)
    return [compression.decompress(restore(one), context) for one, (_, restore), (_, context) in results]


def count_of(weight: Any) -> Any:
    """Convert a weight to a float32 scalar. The weight can be traced.

    Returns:
        The scalar.

    Raises:
        ValueError: If ``weight`` is not a number, or it is a concrete value that is negative or not finite.
    """
    try:
        count = jnp.asarray(weight, jnp.float32)
    except (TypeError, ValueError):
        raise ValueError(f"weight must be a number, got a {type(weight).__name__}") from None
    if count.ndim:
        raise ValueError(f"weight must be a number, got shape {count.shape}")
    if not calls.is_traced([count]):
        check_weight(weight)
    return count


def reduce_weighted(
    leaves: Sequence[Any],
    names: Sequence[str],
    weight_name: str,
    count: Any,
    compression: Any,
    process_set: ProcessSet,
    beside: Sequence[Any] = (),
    steps: str = "",
) -> tuple[list[Any], Any]:
    """Return the weighted means of arrays over the ranks, in the arrays' own dtypes, and the total weight.

    The arguments are those of ``reduce_leaves``. The weights are reduced together with the arrays. If the arrays are
    sent in less than 32 bits, the weights are reduced first. Each rank then multiplies its arrays by weight / total
    before it sends them, so they cannot overflow.

    Args:
        leaves: This rank's arrays.
        names: Their names on the wire.
        weight_name: Name of the weight on the wire.
        count: Weight of this rank, as a scalar array.
        compression: Compressor.
        process_set: Ranks that take part.
        beside: Same as in ``reduce_leaves``.
        steps: Same as in ``reduce_leaves``.
    """
    wide = [leaf.astype(wide_of(leaf.dtype)) for leaf in leaves]
    count = count.astype(jnp.result_type(count, *wide))
    how = (Sum, Compression.none, 1.0, 1.0, process_set)

    def sum_all(values: Sequence[Any]) -> list[Any]:
        if len(values) == 1:
            return reduce_leaves(values, [weight_name], *how, beside=[*leaves, *beside])
        return reduce_leaves(values, [*names, weight_name], *how, beside=beside, steps=steps)

    def sum_shares(shares: Sequence[Any]) -> list[Any]:
        sent = [s if leaf.dtype.itemsize == 1 else s.astype(leaf.dtype) for s, leaf in zip(shares, leaves, strict=True)]
        return reduce_leaves(sent, names, Sum, compression, 1.0, 1.0, process_set, beside=beside, steps=steps)

    exact = compression is Compression.none and all(leaf.dtype.itemsize >= 4 for leaf in leaves)
    means, total = weighted_means(
        jnp, lambda one, dtype: one.astype(dtype), wide, count, sum_all, None if exact else sum_shares
    )
    return [mean.astype(leaf.dtype) for mean, leaf in zip(means, leaves, strict=True)], total


def wide_of(dtype: Any) -> Any:
    """Return ``dtype`` if it is a floating-point type of 32 bits or more, and float32 otherwise."""
    return dtype if jnp.issubdtype(dtype, jnp.inexact) and dtype.itemsize >= 4 else jnp.dtype(jnp.float32)


def call_of(kind: int, names: Sequence[str], number: int, **more: Any) -> calls.Call:
    """Return the parameters of a collective in a compiled program. ``number`` is the process set id."""
    options = {"groups": ("",) * len(names), "op": Sum, **more}
    return calls.Call(kind, tuple(names), process_set=number, frontend=frontend.number, **options)


def groups_of(names: Sequence[str], grouped: bool) -> list[str]:
    """Return each array's group name: the first array's name if ``grouped`` is True, else ""."""
    return [names[0] if grouped else ""] * len(names)
