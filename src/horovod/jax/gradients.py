"""Reduction of gradients over the ranks, optionally weighted by each rank's number of samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import numpy as jnp

from horovod._jax.compression import Compression
from horovod.common.compression import check_compression
from horovod.common.frontends import JAX as face
from horovod.common.job import refusing
from horovod.common.ops import Average, check_op
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.gradients import anybody_else, check_predivide, scales
from horovod.common.training_loop.steps import marks
from horovod.common.training_loop.weights import check_weighted_op
from horovod.jax.arrays import flat, full_names
from horovod.jax.reductions import count_of, reduce_leaves, reduce_weighted, wide_of


@dataclass
class GradientReduction:
    """Settings of a reduction of gradients, after validation.

    ``name`` is the prefix of the operations' names. If ``counted`` is True and the reduction is in a branch, the ranks
    check that all of them have reached the branch the same number of times.
    """

    name: str
    compression: Any = Compression.none
    op: int = Average
    predivide: float = 1.0
    process_set: ProcessSet = global_process_set
    counted: bool = False

    @refusing(face)
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
            ValueError: Horovod is not initialized.
        """
        return anybody_else(self.process_set, face.require_job())

    def __call__(self, gradients: Any, weight: Any = None, beside: Any = ()) -> Any:
        """Reduce the gradients over the ranks, and return them without the total weight."""
        return self.with_total(gradients, weight, beside)[0]

    @refusing(face)
    def with_total(self, gradients: Any, weight: Any = None, beside: Any = ()) -> tuple[Any, Any]:
        """Reduce the gradients over the ranks as one operation, and return them and the total weight, or None.

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
    """Return a function like ``jax.value_and_grad(fun)`` that reduces value and gradients over the ranks.

    One collective reduces the value and the gradients. The auxiliary output of ``has_aux`` is not reduced.

    Args:
        fun (Callable): As for ``jax.value_and_grad``.
        argnums (int or Sequence[int]): As for ``jax.value_and_grad``. Default: 0.
        has_aux (bool): As for ``jax.value_and_grad``. Default: False.
        name (str): Prefix of the operations' names. Default: "value_and_grad".
        compression (Compressor): As for ``DistributedOptimizer``. Default: none.
        op (int): Reduction. Default: ``Average``.
        gradient_predivide_factor (float): As for ``DistributedOptimizer``. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        weight (Callable, optional): Function of the arguments of ``fun`` that returns the weight of this rank's
            gradients, such as ``lambda params, batch: len(batch)`` for the mean over all samples.

    Returns:
        Callable: Function with the arguments of ``fun``, which returns (value, gradients).

    Raises:
        ValueError: An argument is invalid.
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
    """Return a function like ``jax.grad(fun)`` that reduces the gradients over the ranks.

    Args:
        fun (Callable): As for ``jax.grad``.
        argnums (int or Sequence[int]): As for ``jax.grad``. Default: 0.
        has_aux (bool): As for ``jax.grad``. Default: False.
        **options: Keyword arguments of ``value_and_grad``.

    Returns:
        Callable: Function with the arguments of ``fun``, which returns the gradients, or (gradients, aux).
    """
    both = value_and_grad(fun, argnums, has_aux, **{"name": "grad", **options})

    def gradients(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return gradients
