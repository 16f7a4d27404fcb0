"""Distributed Optax optimizer, which reduces gradients over the ranks before applying them.

The extra arguments of Optax's `update` that depend on the loss are reduced too. Transformations that use the loss for
decisions (`reduce_on_plateau`, `lbfgs`, `polyak_sgd`) must make the same decisions on all ranks.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from horovod._jax.compression import Compression
from horovod.common.compression import check_compression
from horovod.common.frontends import JAX as frontend
from horovod.common.frontends import refusing
from horovod.common.ops import Adasum, Average, Sum, check_op, op_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.gradients import anybody_else, check_passes, check_predivide, scales
from horovod.common.training_loop.steps import marks
from horovod.common.training_loop.weights import check_weighted_op
from horovod.jax.arrays import flat, full_names
from horovod.jax.reductions import count_of, reduce_leaves, reduce_weighted, wide_of

# Reduction of gradients over the ranks, optionally weighted by each rank's number of samples.


@dataclass
class GradientReduction:
    """Validated settings for reducing gradients.

    ``name`` is the name prefix of the operations. If ``counted`` is True and the reduction is in a branch of a compiled
    program, the ranks check that all of them have reached the branch the same number of times.
    """

    name: str
    compression: Any = Compression.none
    op: int = Average
    predivide: float = 1.0
    process_set: ProcessSet = global_process_set
    counted: bool = False

    @refusing(frontend)
    def __post_init__(self) -> None:
        self.op = check_op(self.op)
        self.predivide = check_predivide(self.predivide, self.op)
        check_compression(self.compression)
        if not isinstance(self.process_set, ProcessSet):
            raise ValueError(f"process_set must be a ProcessSet, got a {type(self.process_set).__name__}")
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name must be a non-empty string, got {self.name!r}")
        marks.find()

    def active(self) -> bool:
        """Return True if the process set has more than one rank.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        return anybody_else(self.process_set, frontend.require_job())

    def __call__(self, gradients: Any, weight: Any = None, beside: Any = ()) -> Any:
        """Reduce the gradients over the ranks, and return only the reduced gradients; see ``with_total``."""
        return self.with_total(gradients, weight, beside)[0]

    @refusing(frontend)
    def with_total(self, gradients: Any, weight: Any = None, beside: Any = ()) -> tuple[Any, Any]:
        """Reduce the gradients over the ranks as a group.

        Returns:
            The reduced gradients, and the total weight, which is None if ``weight`` is None.

        Args:
            gradients: Pytree of this rank's gradients.
            weight: Weight of this rank's gradients, such as its number of samples. It can be a number or a traced
                scalar. The result is then the weighted mean, and zero if all weights are 0. Gradients with weight 0 are
                ignored and can be NaN.
            beside: Pytree of other arrays of the caller. If one of them is traced, the call becomes part of the
                compiled program even if ``gradients`` are constants.
        """
        check_weighted_op(self.op, weight)
        count = None if weight is None else count_of(weight)
        if not self.active():
            if count is None:
                return gradients, None
            nonzero = jax.tree_util.tree_map(lambda leaf: jnp.where(count > 0, leaf, jnp.zeros_like(leaf)), gradients)
            return nonzero, count
        leaves, places, structure = flat(gradients)
        names = full_names("allreduce", self.name, places)
        others = jax.tree_util.tree_leaves(beside)
        if count is not None:
            full, how = f"allreduce.{self.name}.weight", (self.compression, self.process_set)
            means, total = reduce_weighted(leaves, names, full, count, *how, others, self._steps())
            return structure.unflatten(means), total
        prescale, postscale = scales(self.predivide)
        how = (self.op, self.compression, prescale, postscale, self.process_set)
        return structure.unflatten(reduce_leaves(leaves, names, *how, beside=others, steps=self._steps())), None

    def _steps(self) -> str:
        return f"allreduce.{self.name}.step" if self.counted else ""


def weighted(leaf: Any, weight: Any) -> Any:
    """Return ``leaf * weight`` in float32, or in the dtype of ``leaf`` if that is wider.

    If the weight is 0, the result is 0 even if ``leaf`` is NaN. The gradient of an empty batch is NaN.
    """
    wide = leaf.astype(wide_of(leaf.dtype))
    return jnp.where(weight != 0, wide * weight.astype(wide.dtype), jnp.zeros_like(wide))


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    name: str = "value_and_grad",
    compression: Any = Compression.none,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: Any = None,
) -> Callable[..., Any]:
    """Wrap ``jax.value_and_grad(fun)`` to reduce the value and the gradients over the ranks.

    A single collective reduces both. The auxiliary output of ``has_aux`` is not reduced.

    Args:
        fun (Callable): Same as in ``jax.value_and_grad``.
        argnums (int or Sequence[int]): Same as in ``jax.value_and_grad``. Default: 0.
        has_aux (bool): Same as in ``jax.value_and_grad``. Default: False.
        name (str): Name prefix of the operations. Default: "value_and_grad".
        compression (Compressor): Same as in ``DistributedOptimizer``. Default: none.
        op (int): Reduction. Default: ``Average``.
        gradient_predivide_factor (float): Same as in ``DistributedOptimizer``. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        weight (Callable, optional): Function of the arguments of ``fun`` that returns the weight of this rank's
            gradients, such as ``lambda params, batch: len(batch)`` for the mean over all samples.

    Returns:
        Callable: Function with the arguments of ``fun``, which returns (value, gradients).

    Raises:
        ValueError: If an argument is invalid.
    """
    reduction = GradientReduction(name, compression, op, gradient_predivide_factor, process_set)
    plain = jax.value_and_grad(fun, argnums, has_aux)

    def reduced(*args: Any, **kwargs: Any) -> Any:
        value, gradients = plain(*args, **kwargs)
        loss = value[0] if has_aux else value
        count = weight(*args, **kwargs) if weight is not None else None
        loss, gradients = reduction((loss, gradients), count)
        return ((loss, value[1]) if has_aux else loss), gradients

    return reduced


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any) -> Any:
    """Wrap ``jax.grad(fun)`` to reduce the gradients over the ranks.

    Args:
        fun (Callable): Same as in ``jax.grad``.
        argnums (int or Sequence[int]): Same as in ``jax.grad``. Default: 0.
        has_aux (bool): Same as in ``jax.grad``. Default: False.
        **options: Keyword arguments of ``value_and_grad``.

    Returns:
        Callable: Function with the arguments of ``fun``, which returns the gradients, or (gradients, aux).
    """
    both = value_and_grad(fun, argnums, has_aux, **{"name": "grad", **options})

    def gradients(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return gradients


_VALUES = ("value", "grad")
_FUNCTIONS = ("value_fn", "obj_fn", "grad_fn")


class ExtraArgs:
    """Reduces the extra arguments (such as losses) that are passed to a distributed optimizer's ``update``.

    Args:
        gradients: Settings for the optimizer's gradients. They also apply to losses, but losses are never compressed.
    """

    def __init__(self, gradients: GradientReduction) -> None:
        self._gradients = gradients
        name = f"{gradients.name}.extra"
        self._values = replace(gradients, name=name, compression=Compression.none, predivide=1.0, counted=False)
        self._arguments = replace(self._values, name=f"{name}.params", op=Average)

    def joined(self, extra: Mapping[str, Any], own: Any, reduced: Any, weight: Any) -> dict[str, Any]:
        """Reduce the extra arguments over all ranks.

        Args:
            extra: Arguments of this rank. `value` (a loss) and `grad` are reduced. `value_fn`, `obj_fn` and `grad_fn`
                are replaced by functions whose results and derivatives are reduced. Other arguments are unchanged.
            own: This rank's gradients. If `grad` is the same object, it is replaced by `reduced` and not sent again.
            reduced: The reduced gradients.
            weight: Weight of this rank's samples, or None.

        Returns:
            The arguments, with reduced values.

        Raises:
            ValueError: If an argument is a function, and the reduction is neither Average nor Sum.
        """
        result = dict(extra)
        if not self._gradients.active():
            return result
        for name in _VALUES:
            given = extra.get(name)
            if given is not None:
                same = name == "grad" and _is_same(given, own)
                reduce = self._values if name == "value" else replace(self._gradients, counted=False)
                how = replace(reduce, name=f"{self._values.name}.{name}")
                result[name] = reduced if same else how(given, weight, beside=own)
        for name in _FUNCTIONS:
            if callable(extra.get(name)):
                result[name] = self._joined_function(name, extra[name], weight)
        return result

    def _joined_function(self, name: str, function: Callable[..., Any], weight: Any) -> Callable[..., Any]:
        if self._gradients.op not in (Average, Sum):
            raise ValueError(
                f"{name} requires op={op_name(Average)} or op={op_name(Sum)}, got op={op_name(self._gradients.op)}"
            )
        results = replace(self._values, name=f"{self._values.name}.{name}")

        @functools.wraps(function)
        def joined(params: Any, *args: Any, **kwargs: Any) -> Any:
            return results(function(self._shared(params), *args, **kwargs), weight, beside=params)

        return joined

    def _shared(self, params: Any) -> Any:
        """Return `params` unchanged, but average their gradient over the ranks.

        `params` must be equal on all ranks.
        """

        @jax.custom_jvp
        def same(floats: list[Any]) -> list[Any]:
            return floats

        @same.defjvp
        def _(floats: Any, tangents: Any) -> Any:
            # In forward mode, the tangents of `params` are the same on all ranks, so averaging leaves them unchanged.
            # In reverse mode, this rule averages the gradient of `params`.
            return floats[0], self._arguments(tangents[0])

        leaves, structure = jax.tree_util.tree_flatten(params)
        chosen = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
        for i, leaf in zip(chosen, same([leaves[i] for i in chosen]), strict=True):
            leaves[i] = leaf
        return structure.unflatten(leaves)


def _is_same(one: Any, other: Any) -> bool:
    leaves, others = jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other)
    return len(leaves) == len(others) and all(a is b for a, b in zip(leaves, others, strict=True))


class Accumulated(NamedTuple):
    """State of a distributed optimizer that accumulates gradients over several backward passes per step."""

    inner: Any
    gradients: Any
    """Sum of the gradients since the last step, weighted if weights are given. Small floats are summed in float32."""
    weight: Any
    """Sum of the weights since the last step, as a float32 scalar."""
    passes: Any
    """Number of backward passes since the last step, as an int32 scalar."""


@refusing(frontend)
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
    """Return a gradient transformation that reduces gradients over the ranks, then applies ``optimizer``.

    In addition to the arguments of ``optimizer``, ``update(grads, state, params, weight=n)`` accepts the weight of this
    rank's gradients. If one rank passes a weight, all ranks must. The gradients are then averaged with these weights.
    If all weights are 0, the updates are zeros and the state does not change. The extra arguments ``value``, ``grad``,
    ``value_fn``, ``obj_fn`` and ``grad_fn`` are reduced over all ranks. Other extra arguments must be equal on all
    ranks.

    Args:
        optimizer (optax.GradientTransformation): Transformation to apply to the reduced gradients.
        name (str): Prefix of the operations' names, unique among the program's optimizers. Default:
            "DistributedOptimizer".
        compression (Compressor): See ``Compression``. Default: none.
        backward_passes_per_step (int): Number of updates k over which gradients are summed locally, those of 8 and 16
            bits in float32. Only every k-th update reduces and applies them; the other updates return zeros. Default:
            1.
        op (int): Reduction except ``Adasum``. Default: ``Average``.
        gradient_predivide_factor (float): With ``Average`` over n ranks and a factor f, gradients are divided by f
            before and by n/f after the summation. Default: 1.0.
        average_aggregated_gradients (bool): Average the local gradients instead of summing them. Default: False.
        process_set (ProcessSet): Ranks that take part; on other ranks the result behaves like ``optimizer``. Default:
            all ranks.

    Returns:
        optax.GradientTransformationExtraArgs: Distributed transformation.

    Raises:
        ValueError: If an argument is invalid. The message names it, its value and what is accepted.
        ImportError: If Optax is not installed.
    """
    if not callable(getattr(optimizer, "init", None)) or not callable(getattr(optimizer, "update", None)):
        raise ValueError(
            f"optimizer must be a gradient transformation of Optax, with init and update, got a "
            f"{type(optimizer).__name__}"
        )
    if op == Adasum:
        raise ValueError(f"op must be an elementwise reduction such as {op_name(Average)}, got {op_name(op)}")
    passes = check_passes(backward_passes_per_step)
    # With several passes per step, the reduction runs in a branch that this optimizer creates. All ranks take the same
    # branch, because they all count passes the same way.
    reduce = GradientReduction(name, compression, op, gradient_predivide_factor, process_set, counted=passes == 1)
    plain, extra_args = _with_extra_args(optimizer, ExtraArgs(reduce))
    if passes == 1:

        def update(grads: Any, state: Any, params: Any = None, *, weight: Any = None, **extra: Any) -> Any:
            reduced, total = reduce.with_total(grads, weight)
            updates, new = plain(reduced, state, params, **extra_args(extra, grads, reduced, weight))
            return _unless_empty(total, updates, new, state)

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

    @refusing(frontend)
    def update(grads: Any, state: Accumulated, params: Any = None, *, weight: Any = None, **extra: Any) -> Any:
        count = None if weight is None else count_of(weight)
        grads = each(jnp.asarray, grads)
        own = grads if count is None else each(lambda g: weighted(g, count), grads)
        summed = each(lambda a, g: a + g.astype(a.dtype), state.gradients, own)
        total = state.weight + (0.0 if count is None else count)
        ended = state.passes + 1

        def step() -> Any:
            local = summed
            # Divide the sum by this rank's weight, because the weighted reduction expects the mean of this rank's
            # gradients.
            if count is not None:
                local = each(lambda a: a / jnp.where(total > 0, total, 1).astype(a.dtype), summed)
            elif average:
                local = each(lambda a: a / passes, summed)
            local = each(lambda a, g: a.astype(g.dtype), local, grads)
            reduced, everything = reduce.with_total(local, None if count is None else total)
            more = extra_args(extra, grads, reduced, count)
            updates, inner = _unless_empty(everything, *plain(reduced, state.inner, params, **more), state.inner)
            zeros = each(jnp.zeros_like, summed)
            return updates, Accumulated(inner, zeros, jnp.zeros_like(total), jnp.zeros_like(ended))

        def wait() -> Any:
            # Determine the dtypes of the updates, which can differ from those of the gradients. Skip the reduction,
            # because it preserves shapes and dtypes.
            of_step = jax.eval_shape(lambda g, s, p: plain(g, s, p, **extra)[0], grads, state.inner, params)
            updates = each(lambda one: jnp.zeros(one.shape, one.dtype), of_step)
            return updates, Accumulated(state.inner, summed, total, ended)

        if isinstance(ended, jax.core.Tracer):
            return jax.lax.cond(ended == passes, step, wait)
        return step() if int(ended) == passes else wait()

    return _transformation(init, update)


def _unless_empty(total: Any, updates: Any, new: Any, old: Any) -> tuple[Any, Any]:
    """Return an optimizer's updates and new state.

    If the total weight is 0, return zeros and the old state.
    """
    if total is None:
        return updates, new
    each = jax.tree_util.tree_map
    kept = each(lambda a, b: a if a is b else jnp.where(total > 0, a, b), new, old)
    return each(lambda one: jnp.where(total > 0, one, jnp.zeros_like(one)), updates), kept


def _no_sum(leaf: Any) -> Any:
    small = jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and jnp.result_type(leaf).itemsize < 4
    return jnp.zeros_like(leaf, jnp.float32 if small else None)


def _with_extra_args(optimizer: Any, extra: ExtraArgs) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the optimizer's `update` function, and a function that creates the extra arguments of `update`."""
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
