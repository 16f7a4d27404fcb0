"""Adasum for tf.compat.v1 optimizers: ranks combine the changes of the weights that their own steps have made.

Adasum depends on directions, which an adaptive optimizer changes. So every rank steps with its own gradients, and then
sets the weights to start + Adasum(weights - start). Maleki et al., "Scaling distributed training with adaptive
summation", 2020 (arXiv:2006.02924).
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.tensorflow.gradient_aggregation import PassCounter, after_all, done, hidden_variable, operation, owned
from horovod.tensorflow.reduction import Reduce, key_of


class WeightDeltas:
    """Combination of the ranks' changes of the weights after every ``passes`` steps."""

    def __init__(self, passes: int, reduce: Reduce, name: str) -> None:
        """Create the state.

        ``reduce`` maps (deltas, variables) to combined deltas. ``name`` is the prefix of the variables that hold the
        weights from before the steps.
        """
        self._reduce = reduce
        self._name = name
        self._passes = PassCounter(passes, name)
        self._starts: dict[Any, Any] = {}

    @property
    def counter(self) -> Any:
        return self._passes.variable

    def apply(self, pairs: Sequence[Any], moved: Sequence[Any], step: Callable[[Sequence[Any]], Any]) -> Any:
        """Run ``step(pairs)``, and combine the changes if it was the last step of a cycle.

        ``pairs`` are (gradient, variable) pairs, and ``moved`` are the variables that the step changes. In a graph,
        this returns the operation to run; in eager mode it returns None.
        """
        starts = [self._start_of(variable) for variable in moved]
        self._passes.begin()

        def keep() -> Any:
            both = zip(starts, moved, strict=True)
            return done([start.assign(owned(v.read_value()), read_value=False) for start, v in both])

        kept = tf.cond(self._passes.first, keep, lambda: done([]))
        # The optimizer's use of the gradients, possibly under a condition, must follow the saving of the weights.
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
