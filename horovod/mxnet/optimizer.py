"""DistributedOptimizer: an optimizer of MXNet's that averages gradients over all ranks before it uses them."""

from typing import Any

import mxnet as mx

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet.arguments import refusing
from horovod.mxnet.reduction import Reducer

_OWN = ("_optimizer", "_reducer")


class DistributedOptimizer(mx.optimizer.Optimizer):
    """For Module and for updaters of one's own; with Gluon use ``DistributedTrainer``.

    It stands for the optimizer that it is given: what is asked of it or set is asked and set there.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """``gradient_predivide_factor`` f: gradients are divided by f before and by n / f after the sum.
        ``num_groups``: where MXNet updates several weights at once, in so many groups their gradients are averaged; 0:
        each by itself. ``process_set``: the ranks that take part; others use their gradients as they are.

        Raises ValueError naming what is wrong.
        """
        _check(optimizer)
        object.__setattr__(self, "_optimizer", optimizer)
        object.__setattr__(self, "_reducer", _reducer(gradient_predivide_factor, num_groups, process_set))

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {"_optimizer": self._optimizer, "_reducer": self._reducer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def create_state(self, index: Any, weight: Any) -> Any:
        """As of the plain optimizer."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """As of the plain optimizer."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages the gradient, or the list of them, in place, and has the plain optimizer use it."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """The same for weights of 16 bits that the optimizer keeps in 32."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """As of the plain optimizer."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """As of the plain optimizer."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """As of the plain optimizer."""
        self._optimizer.set_wd_mult(args_wd_mult)

    @refusing
    def _average(self, index: Any, grad: Any) -> None:
        several = isinstance(index, (list, tuple))
        indices, gradients = (list(index), list(grad)) if several else ([index], [grad])
        names = [f"optimizer.{one}" for one in indices]
        # Weights that the next forward pass needs first go first.
        self._reducer.reduce(gradients, names, [-one if isinstance(one, int) else 0 for one in indices])


def _check(optimizer: Any) -> None:
    if isinstance(optimizer, DistributedOptimizer):
        raise ValueError("optimizer is a DistributedOptimizer already; accepted is one of mxnet.optimizer")
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise ValueError(f"optimizer is a {type(optimizer).__name__}; accepted is one of mxnet.optimizer")


@refusing
def _reducer(predivide: Any, num_groups: Any, process_set: Any) -> Reducer:
    return Reducer.checked(predivide, num_groups, process_set)
