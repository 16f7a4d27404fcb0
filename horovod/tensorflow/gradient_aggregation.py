"""Gradients summed up on their rank over several backward passes before they are reduced.

One implementation for sessions, tf.function and eager mode. The state is a counter and an accumulator for each
gradient. The first pass of a cycle overwrites the accumulators, the others add to them, the last one reduces; so
nothing has to be set to zero, and in a session nothing has to be initialised: a counter without value means the first
pass. All ranks count alike, so they agree on whether a pass reduces.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.elastic import accumulated
from horovod.common.gradients import check_passes
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.reduction import Reduce, dense, key_of, name_of


class PassCounter:
    """Counts passes in cycles, as the program runs.

    ``variable``: passes of this cycle that are complete, 0 after its last one; an int32 variable, None before the first
    ``begin``. ``first``, ``last``: is the pass that began last the first or last of its cycle? Scalar tensors.
    """

    def __init__(self, passes: int, name: str) -> None:
        self.variable: Any = None
        self.first: Any = None
        self.last: Any = None
        self._passes = passes
        self._name = name
        accumulated.register(self)

    def begin(self) -> None:
        """A pass begins: sets ``first`` and ``last``."""
        if self.variable is None:
            self.variable = hidden_variable([], tf.int32, self._name + "/counter")
        if in_session():
            self._known = tf.compat.v1.is_variable_initialized(self.variable)
            self._before = tf.cond(self._known, self.variable.read_value, lambda: tf.zeros([], tf.int32))
        else:
            self._before = self.variable.read_value()
        self.first = tf.equal(self._before, 0)
        self.last = tf.equal(self._before + 1, self._passes)

    def end(self, after: Any) -> None:
        """Counts the pass once the tensor ``after`` is there; from now on ``last`` is not there before that either."""
        with tf.control_dependencies([after]):
            count = tf.where(self.last, tf.zeros([], tf.int32), self._before + 1)
            counted = self.variable.assign(count, read_value=False)
        # A branch of a condition in a session waits for the condition, but for nothing else that is outside of it.
        self.last = after_all([after, counted], self.last)

    def pending(self) -> bool:
        """Return True between the first and the last pass of a cycle; in a graph, of the default session."""
        if self.variable is None:
            return False
        if self._is_eager():
            return not in_session() and int(self.variable) != 0
        session = self._session()
        return session is not None and bool(session.run(self._known)) and int(session.run(self.variable)) != 0

    def drop(self) -> None:
        """Begin a cycle anew: its first pass overwrites what others have stored."""
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
        """Return the default session if it is one of this counter's graph, else None."""
        session = tf.compat.v1.get_default_session()
        return session if session is not None and session.graph is self.variable.graph else None

    def was_last(self) -> Any:
        """After ``end``: was it the last pass of a cycle?"""
        # In functions and eager mode the state is read again, since the tensor may be of another function.
        return self.last if in_session() else tf.equal(self.variable.read_value(), 0)


class LocalGradientAggregationHelper:
    """Sums gradients over ``backward_passes_per_step`` passes and reduces the sums.

    In each pass give the gradients to ``compute_gradients`` and what uses its result to ``apply_gradients``, which does
    it in the last pass of a cycle only. ``counter``: see ``PassCounter.variable``.
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
        """``allreduce_func``: (gradients, variables) -> reduced gradients, for example of ``make_allreduce_grads``; it
        decides about local variables, too. ``sparse_as_dense``: make IndexedSlices dense, instead of refusing them.
        ``average_aggregated_gradients``: divide sums by the number of passes. ``name``: of the variables. The other
        arguments are accepted for older programs and mean nothing.

        Raises ValueError for a number of passes that is no integer above 0.
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
        """The accumulators, in the order of the variables' first gradients."""
        return list(self._sums.values())

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """A pass. In the last one of a cycle, the reduced sums; in others, gradients that are not to be used. None for
        a variable that never had a gradient.

        Raises ValueError naming the variable whose gradient is an IndexedSlices, without ``sparse_as_dense``.
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
        """``apply_grads_closure()`` if the pass was the last of a cycle.

        In a graph it is built once, under a condition; what is returned is an operation there, and None in eager mode.
        Further arguments are accepted for older programs.
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
            # It had a gradient in another pass, possibly of this cycle.
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
    # Variables that are missing in this pass may be there in a later pass of the cycle.
    chosen = {id(total) for total in sums}
    others = [total for total in all_sums.values() if id(total) not in chosen]
    written = [total.assign(owned(gradient), read_value=False) for total, gradient in zip(sums, gradients, strict=True)]
    return done(written + [total.assign(tf.zeros(total.shape, total.dtype), read_value=False) for total in others])


def _add(sums: Sequence[Any], gradients: Sequence[Any]) -> Any:
    return done([total.assign_add(gradient, read_value=False) for total, gradient in zip(sums, gradients, strict=True)])


def in_session() -> bool:
    """Is a graph for a session being built? There nothing is ordered, or has a value, unless the program says so."""
    return not tf.executing_eagerly() and not tf.compat.v1.executing_eagerly_outside_functions()


def hidden_variable(shape: Any, dtype: Any, name: str) -> Any:
    """A variable of zeros that is not trained and not part of checkpoints; in functions it outlives the trace."""
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
    """``value`` in memory that nothing else uses, to be kept in a variable.

    In a session it may be the memory of a reference variable, which changes in place.
    """
    return tf.raw_ops.DeepCopy(x=value) if in_session() else value


def only_if(condition: Any, action: Callable[[], Any]) -> Any:
    """``action()`` if the scalar ``condition`` holds; in a graph, the operation that does so."""
    return operation(tf.cond(condition, lambda: done([action()]), lambda: done([])))


def done(operations: Sequence[Any]) -> Any:
    """A tensor that is there once the operations are."""
    return after_all(operations, True)


def after_all(operations: Sequence[Any], value: Any) -> Any:
    """``value`` as a tensor that is there once the operations are. None stands for one that is done."""
    with tf.control_dependencies([operation for operation in operations if operation is not None]):
        return tf.identity(value)


def operation(tensor: Any) -> Any:
    """In a graph, an operation that computes the tensor; None in eager mode, where it is computed."""
    return None if tf.executing_eagerly() else tf.group(tensor)
