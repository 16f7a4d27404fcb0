"""Reduction of the extra arguments of Optax's `update` that depend on the loss.

Transformations that decide by a loss (`reduce_on_plateau`, `lbfgs`, `polyak_sgd`) must decide alike on all ranks.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
from jax import numpy as jnp

from horovod._jax.compression import Compression
from horovod.common.ops import Average, Sum, op_name
from horovod.jax.gradients import GradientReduction

_VALUES = ("value", "grad")
_FUNCTIONS = ("value_fn", "obj_fn", "grad_fn")


class ExtraArgs:
    """Reduction of the extra arguments of one distributed optimizer.

    Args:
        gradients: Settings for the optimizer's gradients. Losses are reduced in the same way, but never compressed.
    """

    def __init__(self, gradients: GradientReduction) -> None:
        self._gradients = gradients
        name = f"{gradients.name}.extra"
        self._values = replace(gradients, name=name, compression=Compression.none, predivide=1.0, counted=False)
        self._arguments = replace(self._values, name=f"{name}.params", op=Average)

    def joined(self, extra: Mapping[str, Any], own: Any, reduced: Any, weight: Any) -> dict[str, Any]:
        """Return the extra arguments reduced over all ranks.

        Args:
            extra: Arguments of this rank. `value` (a loss) and `grad` are reduced. `value_fn`, `obj_fn` and `grad_fn`
                become functions whose results, and the derivatives of these, are reduced. Others are unchanged.
            own: This rank's gradients. If `grad` is the same object, it becomes `reduced` without being sent again.
            reduced: The reduced gradients.
            weight: Weight of this rank's samples, or None.

        Raises:
            ValueError: There is a function, and the reduction is neither Average nor Sum.
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
        """Return `params`, which are equal on all ranks, with a gradient that is averaged over the ranks."""

        @jax.custom_jvp
        def same(floats: list[Any]) -> list[Any]:
            return floats

        @same.defjvp
        def _(floats: Any, tangents: Any) -> Any:
            # Equal on all ranks as well; the transpose of an average is an average.
            return floats[0], self._arguments(tangents[0])

        leaves, structure = jax.tree_util.tree_flatten(params)
        chosen = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
        for i, leaf in zip(chosen, same([leaves[i] for i in chosen]), strict=True):
            leaves[i] = leaf
        return structure.unflatten(leaves)


def _is_same(one: Any, other: Any) -> bool:
    leaves, others = jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other)
    return len(leaves) == len(others) and all(a is b for a, b in zip(leaves, others, strict=True))
