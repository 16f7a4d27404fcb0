"""DistributedOptimizer: an Optax gradient transformation preceded by a reduction of the gradients over the ranks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from horovod._jax.compression import Compression
from horovod.common.faces import JAX as face
from horovod.common.gradients import check_passes
from horovod.common.ops import Adasum, Average, op_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.refusals import refusing
from horovod.jax.extra_args import ExtraArgs
from horovod.jax.gradients import GradientReduction, count_of, weighted


class Accumulated(NamedTuple):
    """State of a distributed optimizer with several backward passes per step."""

    inner: Any
    gradients: Any
    """Sum of gradients since the last step, weighted if there are weights. 8- and 16-bit ones are summed in float32."""
    weight: Any
    """Sum of weights, float32."""
    passes: Any
    """Number of passes since the last step, int32."""


@refusing(face)
def DistributedOptimizer(
    optimizer: Any,
    name: str = "DistributedOptimizer",
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return a gradient transformation that reduces gradients over the ranks before it applies ``optimizer``.

    ``update(grads, state, params, weight=n)`` accepts the weight of this rank's gradients in addition to the arguments
    of ``optimizer``. If given, on all ranks, the result is the weighted mean. The extra arguments ``value``, ``grad``,
    ``value_fn``, ``obj_fn`` and ``grad_fn`` are reduced over all ranks. Others must be equal on all ranks.

    Args:
        optimizer (optax.GradientTransformation): Transformation.
        name (str): Prefix of the operations' names, unique among the program's optimizers. Default:
            "DistributedOptimizer".
        compression (Compressor): See ``Compression``. Default: none.
        backward_passes_per_step (int): Number of updates k over which gradients are summed locally, those of 8 and 16
            bits in float32. Only each k-th update reduces them and has an effect; the others return zeros. Default: 1.
        op (int): Reduction except ``Adasum``. Default: ``Average``.
        gradient_predivide_factor (float): With ``Average`` over n ranks and a factor f, gradients are divided by f
            before and by n/f after the summation. Default: 1.0.
        average_aggregated_gradients (bool): Average the local gradients instead of summing them. Default: False.
        process_set (ProcessSet): Ranks that take part; on other ranks the result behaves like ``optimizer``. Default:
            all ranks.

    Returns:
        optax.GradientTransformationExtraArgs: Distributed transformation.

    Raises:
        ValueError: An argument is invalid; the message names it, its value and what is accepted.
        ImportError: Optax is not installed.
    """
    if not callable(getattr(optimizer, "init", None)) or not callable(getattr(optimizer, "update", None)):
        raise ValueError(
            f"optimizer must be a gradient transformation of Optax, with init and update, got a "
            f"{type(optimizer).__name__}"
        )
    if op == Adasum:
        raise ValueError(f"op must be an elementwise reduction such as {op_name(Average)}, got {op_name(op)}")
    passes = check_passes(backward_passes_per_step)
    # With several passes, this optimizer creates the branch, and decides it by a count that is the same on all ranks.
    reduce = GradientReduction(name, compression, op, gradient_predivide_factor, process_set, counted=passes == 1)
    plain, extra_args = _with_extra_args(optimizer, ExtraArgs(reduce))
    if passes == 1:

        def update(grads: Any, state: Any, params: Any = None, *, weight: Any = None, **extra: Any) -> Any:
            reduced = reduce(grads, weight)
            return plain(reduced, state, params, **extra_args(extra, grads, reduced, weight))

        return _transformation(optimizer.init, update)
    return _accumulating(optimizer, plain, extra_args, reduce, passes, average_aggregated_gradients)


def _accumulating(
    optimizer: Any,
    plain: Callable[..., Any],
    extra_args: Callable[..., Any],
    reduce: GradientReduction,
    passes: int,
    average: bool,
) -> Any:
    each = jax.tree_util.tree_map

    def init(params: Any) -> Accumulated:
        zeros = each(_no_sum, params)
        return Accumulated(optimizer.init(params), zeros, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))

    @refusing(face)
    def update(grads: Any, state: Accumulated, params: Any = None, *, weight: Any = None, **extra: Any) -> Any:
        count = None if weight is None else count_of(weight)
        grads = each(jnp.asarray, grads)
        own = grads if count is None else each(lambda g: weighted(g, count), grads)
        summed = each(lambda a, g: a + g.astype(a.dtype), state.gradients, own)
        total = state.weight + (0.0 if count is None else count)
        done = state.passes + 1

        def step() -> Any:
            mine = summed
            if count is not None:  # the weighted reduction expects a mean
                mine = each(lambda a: a / jnp.where(total > 0, total, 1).astype(a.dtype), summed)
            elif average:
                mine = each(lambda a: a / passes, summed)
            mine = each(lambda a, g: a.astype(g.dtype), mine, grads)
            reduced = reduce(mine, None if count is None else total)
            more = extra_args(extra, grads, reduced, count)
            updates, inner = plain(reduced, state.inner, params, **more)
            zeros = each(jnp.zeros_like, summed)
            return updates, Accumulated(inner, zeros, jnp.zeros_like(total), jnp.zeros_like(done))

        def wait() -> Any:
            # The updates of a step may differ in dtype from the gradients. The reduction, which only a step performs,
            # preserves shapes and dtypes.
            of_step = jax.eval_shape(lambda g, s, p: plain(g, s, p, **extra)[0], grads, state.inner, params)
            updates = each(lambda one: jnp.zeros(one.shape, one.dtype), of_step)
            return updates, Accumulated(state.inner, summed, total, done)

        if isinstance(done, jax.core.Tracer):
            return jax.lax.cond(done == passes, step, wait)
        return step() if int(done) == passes else wait()

    return _transformation(init, update)


def _no_sum(leaf: Any) -> Any:
    small = jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and jnp.result_type(leaf).itemsize < 4
    return jnp.zeros_like(leaf, jnp.float32 if small else None)


def _with_extra_args(optimizer: Any, extra: ExtraArgs) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return (its `update`, a function that creates the extra arguments for it, or none if it accepts none)."""
    import optax

    if not isinstance(optimizer, optax.GradientTransformation):
        return optimizer.update, extra.joined
    if isinstance(optimizer, optax.GradientTransformationExtraArgs):
        return optimizer.update, extra.joined
    return optax.with_extra_args_support(optimizer).update, lambda *_: {}


def _transformation(init: Callable[..., Any], update: Callable[..., Any]) -> Any:
    try:
        import optax
    except ImportError as error:
        raise ImportError(
            f"hvd.DistributedOptimizer needs Optax, which cannot be imported ({error}); install it with: pip install "
            "optax"
        ) from error
    return optax.GradientTransformationExtraArgs(init, update)
