"""Local accumulation of gradients over several backward passes (``backward_passes_per_step``)."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from horovod.common.elastic import own
from horovod.common.gradients import overwritten


def keras3_tools(keras: Any) -> SimpleNamespace:
    """Return the functions of Keras 3 that LocalAggregation needs.

    They work on any backend except JAX, whose state is not in variables.
    """

    def variable(shape: Any, dtype: Any, name: str) -> Any:
        zeros = keras.initializers.Zeros()
        return keras.Variable(zeros, shape=shape, dtype=dtype, trainable=False, name=name)

    return SimpleNamespace(
        variable=variable,
        cond=keras.ops.cond,
        tensor=keras.ops.convert_to_tensor,
        zeros_like=keras.ops.zeros_like,
        maximum=keras.ops.maximum,
    )


class LocalAggregation:
    """Accumulator that turns the gradients of ``passes`` calls into one update.

    The sums are variables outside of the optimizer, so that saved files contain what a plain optimizer would save.
    """

    def __init__(self, tools: Any, adapter: Any, passes: int, average: bool, sparse_as_dense: bool) -> None:
        """Create an empty accumulator.

        Args:
            tools: Functions as returned by ``keras3_tools``.
            adapter: Adapter of the backend.
            passes: Number of calls per update.
            average: True to divide the sums by ``passes``.
            sparse_as_dense: True to convert sparse gradients to dense ones. Otherwise they are an error.
        """
        self._tools = tools
        self._adapter = adapter
        self._passes = passes
        self._average = average
        self._sparse_as_dense = sparse_as_dense
        self._sums: dict[Any, Any] = {}
        self.counter = tools.variable((), "int32", "backward_passes")
        own.register_accumulator(self)

    def pending(self) -> bool:
        """Return True between the first and the last pass of a cycle."""
        return int(self._tools.tensor(self.counter)) != 0

    def drop(self) -> None:
        """Discard the sums and begin a new cycle."""
        for total in self._sums.values():
            total.assign(self._tools.zeros_like(self._tools.tensor(total)))
        self.counter.assign(0)

    def step(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        update: Callable[[list[Any]], Any],
        skip: Callable[[], Any],
    ) -> None:
        """Add ``grads``; call ``update(sums)`` in every ``passes``-th call and ``skip()`` in the others.

        A gradient that is None adds nothing. The sum is None if no pass had a gradient.

        Raises:
            ValueError: A gradient is sparse and ``sparse_as_dense`` is False.
        """
        tools = self._tools
        pairs = list(zip(grads, variables, strict=True))
        dense = [self._dense(grad, variable) for grad, variable in pairs]
        for grad, variable in zip(dense, variables, strict=True):
            if grad is None:
                continue
            total = self._sum_of(variable)
            if overwritten(variable):
                total.assign(tools.maximum(tools.tensor(total), grad))
            else:
                total.assign_add(grad)
        sums = [self._sums.get(self._adapter.key(variable)) for variable in variables]
        self.counter.assign_add(1)

        def flush() -> None:
            update([self._complete(total, variable) for total, variable in zip(sums, variables, strict=True)])
            for total in sums:
                if total is not None:
                    total.assign(tools.zeros_like(tools.tensor(total)))
            self.counter.assign(0)

        def keep() -> None:
            skip()

        tools.cond(tools.tensor(self.counter) == self._passes, flush, keep)

    def _complete(self, total: Any, variable: Any) -> Any:
        if total is None:
            return None
        factor = 1.0 / self._passes if self._average and not overwritten(variable) else 1.0
        return self._adapter.scale(self._tools.tensor(total), factor)

    def _dense(self, grad: Any, variable: Any) -> Any:
        is_sparse = hasattr(grad, "dense_shape") or getattr(grad, "is_sparse", False) is True
        if not is_sparse:
            return grad
        if not self._sparse_as_dense:
            name = getattr(variable, "path", None) or getattr(variable, "name", "?")
            raise ValueError(
                f"backward_passes_per_step={self._passes}: the gradient of {name!r} is sparse; give "
                "sparse_as_dense=True"
            )
        return grad.to_dense() if hasattr(grad, "to_dense") else self._tools.tensor(grad)

    def _sum_of(self, variable: Any) -> Any:
        key = self._adapter.key(variable)
        if key not in self._sums:
            self._sums[key] = self._tools.variable(variable.shape, variable.dtype, "gradient_sum")
        return self._sums[key]
