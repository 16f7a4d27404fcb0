"""Adasum for optimizers of tf.compat.v1: what is combined is how far each rank's own steps have moved the weights.

Adasum depends on directions, and an adaptive optimizer changes them; so every rank takes its steps with its own
gradients, and then the weights become start + Adasum(weights - start). Maleki et al., "Scaling distributed training
with adaptive summation", 2020 (arXiv:2006.02924).
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.tensorflow.gradient_aggregation import PassCounter, after_all, done, hidden_variable, operation, owned
from horovod.tensorflow.reduction import Reduce, key_of


class WeightDeltas:
    """Combines the weights' changes after every ``passes`` steps."""

    def __init__(self, passes: int, reduce: Reduce, name: str) -> None:
        """``reduce``: (deltas, variables) -> combined deltas. ``name``: of the variables that hold the start."""
        self._reduce = reduce
        self._name = name
        self._passes = PassCounter(passes, name)
        self._starts: dict[Any, Any] = {}

    @property
    def counter(self) -> Any:
        return self._passes.variable

    def apply(self, pairs: Sequence[Any], moved: Sequence[Any], step: Callable[[Sequence[Any]], Any]) -> Any:
        """Does ``step(pairs)`` with (gradient, variable) pairs, which changes the variables ``moved``, and combines if
        it was the last step of a cycle. In a graph, the operation that does so; None in eager mode."""
        starts = [self._start_of(variable) for variable in moved]
        self._passes.begin()

        def keep() -> Any:
            both = zip(starts, moved, strict=True)
            return done([start.assign(owned(v.read_value()), read_value=False) for start, v in both])

        kept = tf.cond(self._passes.first, keep, lambda: done([]))
        # Whatever the optimizer does with them, under a condition for one, it does after that.
        pairs = [(_after(kept, gradient), variable) for gradient, variable in pairs]
        self._passes.end(done([kept, step(pairs)]))
        combined = tf.cond(self._passes.last, lambda: self._combine(moved, starts), lambda: done([]))
        return operation(combined)

    def _start_of(self, variable: Any) -> Any:
        key = key_of(variable)
        if key not in self._starts:
            name = f"{self._name}/start_{len(self._starts)}"
            self._starts[key] = hidden_variable(variable.shape, variable.dtype.base_dtype, name)
        return self._starts[key]

    def _combine(self, variables: Sequence[Any], starts: Sequence[Any]) -> Any:
        begun = [start.read_value() for start in starts]
        deltas = [variable.read_value() - start for variable, start in zip(variables, begun, strict=True)]
        reduced = self._reduce(deltas, variables)
        return done([v.assign(start + delta) for v, start, delta in zip(variables, begun, reduced, strict=True)])


def _after(kept: Any, gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(after_all([kept], gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else after_all([kept], gradient)
