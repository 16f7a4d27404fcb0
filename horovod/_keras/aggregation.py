"""Gradients summed up locally over several backward passes, for the optimizers of Keras 3."""

from collections.abc import Callable, Sequence
from typing import Any


class LocalAggregation:
    """``backward_passes_per_step``: the gradients of that many calls become one update.

    The sums are variables of Keras that do not belong to the optimizer, so that files saved hold what a plain
    optimizer would have saved.
    """

    def __init__(self, keras: Any, adapter: Any, passes: int, average: bool, sparse_as_dense: bool) -> None:
        """``keras``: the module. ``average``: divide the sums by ``passes``? ``sparse_as_dense``: may sparse gradients
        be made dense? Otherwise they are an error."""
        self._keras = keras
        self._adapter = adapter
        self._passes = passes
        self._average = average
        self._sparse_as_dense = sparse_as_dense
        self._sums: dict[Any, Any] = {}
        self.counter = self._variable((), "int32", "backward_passes")

    def _variable(self, shape: Any, dtype: Any, name: str) -> Any:
        zeros = self._keras.initializers.Zeros()
        return self._keras.Variable(zeros, shape=shape, dtype=dtype, trainable=False, name=name)

    def step(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        update: Callable[[list[Any]], Any],
        skip: Callable[[], Any],
    ) -> None:
        """Adds ``grads``; calls ``update(sums)`` in every ``passes``-th call and ``skip()`` in the others.

        A gradient that is None stays so. Raises ValueError for a sparse one without ``sparse_as_dense``.
        """
        dense = [self._dense(grad, variable) for grad, variable in zip(grads, variables, strict=True)]
        sums = [
            None if grad is None else self._sum_of(variable) for grad, variable in zip(dense, variables, strict=True)
        ]
        for total, grad in zip(sums, dense, strict=True):
            if total is not None:
                total.assign_add(grad)
        self.counter.assign_add(1)

        def flush() -> None:
            factor = 1.0 / self._passes if self._average else 1.0
            update([None if total is None else self._adapter.scale(total.value, factor) for total in sums])
            for total in sums:
                if total is not None:
                    total.assign(self._keras.ops.zeros_like(total.value))
            self.counter.assign(0)

        def keep() -> None:
            skip()

        self._keras.ops.cond(self.counter.value == self._passes, flush, keep)

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
        return grad.to_dense() if hasattr(grad, "to_dense") else self._keras.ops.convert_to_tensor(grad)

    def _sum_of(self, variable: Any) -> Any:
        key = self._adapter.key(variable)
        if key not in self._sums:
            self._sums[key] = self._variable(variable.shape, variable.dtype, "gradient_sum")
        return self._sums[key]
