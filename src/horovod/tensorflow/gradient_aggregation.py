"""Local accumulation of gradients over several backward passes before a reduction.

The same code serves sessions, tf.function and eager mode. Its state is a counter of passes, and one accumulator per
gradient. A cycle is ``backward_passes_per_step`` passes. Its first pass overwrites the accumulators, later passes add
to them, and the last pass also reduces them. The accumulators therefore need neither a reset nor, in sessions, an
initializer: a counter without a value means the first pass. All ranks count passes alike, so they reduce in the same
pass.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.elastic import own
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.gradients import check_passes
from horovod.tensorflow.reduction import Reduce, dense, key_of, name_of


class PassCounter:
    """Counter of the backward passes since the last update, kept in a TensorFlow variable.

    Attributes:
        variable: Number of completed passes of the current cycle, 0 after the last pass. It is an int32 variable, or
            None before the first call of ``begin``.
        first, last: Scalar bool tensors, true if the latest pass is the first or the last of its cycle.
    """

    def __init__(self, passes: int, name: str) -> None:
        self.variable: Any = None
        self.first: Any = None
        self.last: Any = None
        self._passes = passes
        self._name = name
        own.register_accumulator(self)

    def begin(self) -> None:
        """Begin a backward pass, and determine whether it is the first or the last one before an update."""
        if self.variable is None:
            self.variable = hidden_variable([], tf.int32, self._name + "/counter")
        if in_session():
            self._initialized = tf.compat.v1.is_variable_initialized(self.variable)
            self._before = tf.cond(self._initialized, self.variable.read_value, lambda: tf.zeros([], tf.int32))
        else:
            self._before = self.variable.read_value()
        self.first = tf.equal(self._before, 0)
        self.last = tf.equal(self._before + 1, self._passes)

    def end(self, after: Any) -> None:
        """Update the counter at the end of a backward pass, once the tensor ``after`` has been computed.

        Afterwards, code that reads ``last`` (whether this pass ends its cycle) waits for ``after`` and for the update.
        """
        with tf.control_dependencies([after]):
            count = tf.where(self.last, tf.zeros([], tf.int32), self._before + 1)
            counted = self.variable.assign(count, read_value=False)
        # In sessions, a branch of tf.cond waits only for the condition and for operations inside the branch. Therefore
        # make the condition ``last`` depend on ``after``.
        self.last = after_all([after, counted], self.last)

    def pending(self) -> bool:
        """Return True if some, but not all, of the backward passes before the next update have been completed.

        In a graph, the counter's value is read from the default session.
        """
        if self.variable is None:
            return False
        if self._is_eager():
            return not in_session() and int(self.variable) != 0
        session = self._session()
        return session is not None and bool(session.run(self._initialized)) and int(session.run(self.variable)) != 0

    def drop(self) -> None:
        """Reset the counter to zero. The next backward pass overwrites the accumulators."""
        if self.variable is None:
            return
        if self._is_eager():
            if not in_session():
                self.variable.assign(0)
        elif (session := self._session()) is not None:
            session.run(self.variable.initializer)

    def _is_eager(self) -> bool:
        return not hasattr(self.variable, "graph")

    def _session(self) -> Any:
        """Return the default session if it belongs to the counter's graph, or None otherwise."""
        session = tf.compat.v1.get_default_session()
        return session if session is not None and session.graph is self.variable.graph else None

    def was_last(self) -> Any:
        """Return a bool tensor that is true if the last backward pass before an update has just ended."""
        # Outside of sessions, read the counter again, because the tensor ``last`` may belong to another tf.function.
        return self.last if in_session() else tf.equal(self.variable.read_value(), 0)


class LocalGradientAggregationHelper:
    """Accumulator that sums gradients over ``backward_passes_per_step`` passes and then reduces the sums.

    In each pass, call ``compute_gradients`` with the gradients, then ``apply_gradients`` with a function that applies
    its result. ``apply_gradients`` calls the function only in the last pass of a cycle. ``counter`` is described in
    ``PassCounter.variable``.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
        rank: int | None = None,
        optimizer_type: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        """Create an accumulator.

        Args:
            backward_passes_per_step (int): Number of passes per cycle.
            allreduce_func (Callable): Function that takes gradients and variables and returns the reduced gradients,
                such as the result of ``make_allreduce_grads``. It also handles local variables.
            sparse_as_dense (bool): Convert IndexedSlices to dense tensors instead of rejecting them. Default: False.
            average_aggregated_gradients (bool): Divide the sums by the number of passes. Default: False.
            rank (int, optional): Ignored; accepted for compatibility.
            optimizer_type (Any): Ignored; accepted for compatibility.
            process_set (ProcessSet): Ignored; accepted for compatibility.
            scale_local_gradients (bool): Ignored; accepted for compatibility.
            name (str): Prefix for the names of the variables.

        Raises:
            ValueError: If the number of passes is not a positive integer.
        """
        self.backward_passes_per_step = check_passes(backward_passes_per_step)
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self._reduce = allreduce_func
        self._name = name or "LocalGradientAggregationHelper"
        self._passes = PassCounter(backward_passes_per_step, self._name)
        self._sums: dict[Any, Any] = {}

    @property
    def counter(self) -> Any:
        return self._passes.variable

    @property
    def locally_aggregated_grads(self) -> list[Any]:
        """Accumulator variables, in the order in which gradients first appeared."""
        return list(self._sums.values())

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Add the gradients of one backward pass to the sums, and reduce the sums after the last pass before an update.

        Args:
            grads (Sequence): Gradients of the pass.
            vars (Sequence): Their variables.

        Returns:
            list: The reduced sums in the last pass of a cycle. In other passes, the values are meaningless. An entry is
                None if the variable never had a gradient.

        Raises:
            ValueError: If a gradient is an IndexedSlices and ``sparse_as_dense`` is False. The message names the
                variable.
        """
        gradients = [self._checked(gradient, variable) for gradient, variable in zip(grads, vars, strict=True)]
        if self.backward_passes_per_step == 1:
            return self._reduce(gradients, vars)
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        added = [gradients[i] for i in present]
        sums = [self._sum_of(vars[i], gradients[i]) for i in present]
        self._passes.begin()
        stored = tf.cond(self._passes.first, lambda: _overwrite(sums, added, self._sums), lambda: _add(sums, added))
        self._passes.end(stored)

        def reduce() -> list[Any]:
            totals: list[Any] = [None] * len(gradients)
            for i, total in zip(present, sums, strict=True):
                totals[i] = self._averaged(total.read_value())
            reduced = self._reduce(totals, vars)
            return [tf.identity(reduced[i]) for i in present]

        values = tf.cond(self._passes.last, reduce, lambda: [tf.identity(gradient) for gradient in added])
        results: list[Any] = [None] * len(gradients)
        for i, value in zip(present, values, strict=True):
            value.set_shape(gradients[i].shape)
            results[i] = value
        return results

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Call ``apply_grads_closure`` after the last backward pass before an update.

        In a graph, the closure is called once to build the update, inside a ``tf.cond``.

        Args:
            apply_grads_closure (Callable): Function without arguments that applies the gradients.
            optimizer (Any): Ignored; accepted for compatibility.
            *args: Ignored; accepted for compatibility.
            **kwargs: Ignored; accepted for compatibility.

        Returns:
            tf.Operation or None: In a graph, the operation; None in eager mode.
        """
        if self.backward_passes_per_step == 1:
            return apply_grads_closure()
        return only_if(self._passes.was_last(), apply_grads_closure)

    def _checked(self, gradient: Any, variable: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense:
            raise ValueError(
                f"the gradient of {name_of(variable)!r} is an IndexedSlices, which backward_passes_per_step="
                f"{self.backward_passes_per_step} sums up only with sparse_as_dense=True"
            )
        if gradient is None and key_of(variable) in self._sums:
            # Use zeros, because the variable had a gradient in an earlier pass and therefore has an accumulator.
            total = self._sums[key_of(variable)]
            return tf.zeros(total.shape, total.dtype)
        return dense(gradient)

    def _sum_of(self, variable: Any, gradient: Any) -> Any:
        key = key_of(variable)
        if key not in self._sums:
            self._sums[key] = hidden_variable(variable.shape, gradient.dtype, f"{self._name}/sum_{len(self._sums)}")
        return self._sums[key]

    def _averaged(self, total: Any) -> Any:
        if not self.average_aggregated_gradients:
            return total
        return total / tf.cast(self.backward_passes_per_step, total.dtype)


def _overwrite(sums: Sequence[Any], gradients: Sequence[Any], all_sums: dict[Any, Any]) -> Any:
    # Reset the accumulators of all other variables, which may get gradients in a later pass of this cycle.
    chosen = {id(total) for total in sums}
    others = [total for total in all_sums.values() if id(total) not in chosen]
    written = [total.assign(owned(gradient), read_value=False) for total, gradient in zip(sums, gradients, strict=True)]
    return done(written + [total.assign(tf.zeros(total.shape, total.dtype), read_value=False) for total in others])


def _add(sums: Sequence[Any], gradients: Sequence[Any]) -> Any:
    return done([total.assign_add(gradient, read_value=False) for total, gradient in zip(sums, gradients, strict=True)])


def in_session() -> bool:
    """Return True if the program is building a graph for a session.

    In such a graph, operations run in an undefined order, and variables have no values until the program initializes
    them.
    """
    return not tf.executing_eagerly() and not tf.compat.v1.executing_eagerly_outside_functions()


def hidden_variable(shape: Any, dtype: Any, name: str) -> Any:
    """Create a variable of zeros that is not trainable and not saved in checkpoints.

    A variable created while a function is traced stays valid after the trace.

    Returns:
        The variable.
    """
    with tf.init_scope():
        initial = tf.zeros(shape, dtype)
        if tf.executing_eagerly():
            return tf.Variable(initial, trainable=False, name=name)
        return tf.compat.v1.Variable(
            initial,
            trainable=False,
            name=name,
            use_resource=True,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        )


def owned(value: Any) -> Any:
    """Return ``value`` in a form that is safe to store in a variable.

    In a session, the result is a copy: the original can share the memory of a reference variable, which changes in
    place.
    """
    return tf.raw_ops.DeepCopy(x=value) if in_session() else value


def only_if(condition: Any, action: Callable[[], Any]) -> Any:
    """Run ``action`` if the scalar ``condition`` is true. In a graph, return the tf.cond operation."""
    return operation(tf.cond(condition, lambda: done([action()]), lambda: done([])))


def done(operations: Sequence[Any]) -> Any:
    """Return a tensor with value True that is evaluated only after ``operations`` have run."""
    return after_all(operations, True)


def after_all(operations: Sequence[Any], value: Any) -> Any:
    """Return ``value`` as a tensor that is evaluated after ``operations``. Entries that are None are ignored."""
    with tf.control_dependencies([operation for operation in operations if operation is not None]):
        return tf.identity(value)


def operation(tensor: Any) -> Any:
    """Return the tf.Operation that computes a graph tensor, or None in eager mode."""
    return None if tf.executing_eagerly() else tf.group(tensor)


# -- Adasum for tf.compat.v1 optimizers ------------------------------------------------------------------------------
#
# Ranks combine their weight changes instead of their gradients. Adasum depends on the directions of its inputs, and
# adaptive optimizers change the directions of gradients. Every rank therefore steps with its own gradients, and then
# sets the weights to start + Adasum(weights - start). See Maleki et al., "Scaling distributed training with adaptive
# summation", 2020 (arXiv:2006.02924).


class WeightDeltas:
    """Optimizer step that combines the ranks' weight changes once every ``passes`` steps."""

    def __init__(self, passes: int, reduce: Reduce, name: str) -> None:
        """Create a step that has not counted any passes.

        Args:
            passes: Number of steps per cycle. The last step of a cycle combines the weight changes.
            reduce: Function that maps (weight changes of this rank, variables) to the combined weight changes.
            name: Name prefix of the variables that store the weights at the start of a cycle.

        ``reduce`` maps (deltas, variables) to combined deltas. ``name`` is the name prefix of the variables that store
        the weights before the first step of a cycle.
        """
        self._reduce = reduce
        self._name = name
        self._passes = PassCounter(passes, name)
        self._starts: dict[Any, Any] = {}

    @property
    def counter(self) -> Any:
        return self._passes.variable

    def apply(self, pairs: Sequence[Any], moved: Sequence[Any], step: Callable[[Sequence[Any]], Any]) -> Any:
        """Run an optimizer step. In the last step of a cycle, combine the weight changes of all ranks with Adasum.

        ``step(pairs)`` applies the (gradient, variable) pairs. ``moved`` contains the variables that ``step`` changes.

        Returns:
            In a graph, the operation to run. None in eager mode.
        """
        starts = [self._start_of(variable) for variable in moved]
        self._passes.begin()

        def keep() -> Any:
            both = zip(starts, moved, strict=True)
            return done([start.assign(owned(v.read_value()), read_value=False) for start, v in both])

        kept = tf.cond(self._passes.first, keep, lambda: done([]))
        # Apply the gradients only after the weights have been saved, even if the optimizer applies them inside a
        # tf.cond.
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


def _after(dependencies: Any, gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(after_all([dependencies], gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else after_all([dependencies], gradient)
