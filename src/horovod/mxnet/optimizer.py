"""DistributedOptimizer: an MXNet optimizer that averages gradients over all ranks before it uses them."""

from typing import Any

import mxnet as mx

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet.arguments import refusing
from horovod.mxnet.reduction import Reducer

_OWN = ("_optimizer", "_reducer")


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Optimizer that averages gradients over the ranks, for Module and custom updaters.

    With Gluon, use ``DistributedTrainer``. Attributes are read from and written to the given optimizer.

    Args:
        optimizer (mxnet.optimizer.Optimizer): Optimizer that uses the averaged gradients.
        gradient_predivide_factor (float): With n ranks and a factor f, gradients are divided by f before and by n/f
            after the summation. Default: 1.0.
        num_groups (int): Number of groups in which gradients are averaged if MXNet updates several weights at once; 0
            averages each one separately. Default: 0.
        process_set (ProcessSet): Ranks that take part; other ranks use their own gradients. Default: all ranks.

    Raises:
        ValueError: An argument is invalid; the message names it.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        _check(optimizer)
        object.__setattr__(self, "_optimizer", optimizer)
        object.__setattr__(self, "_reducer", _reducer(gradient_predivide_factor, num_groups, process_set))

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # these attributes do not exist yet while it is unpickled
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
        """Create state like the plain optimizer."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Create state like the plain optimizer."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradient, or the list of gradients, in place, and pass it to the plain optimizer."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Do the same as ``update`` for 16-bit weights of which the optimizer keeps a 32-bit copy."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of the plain optimizer."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set the learning rate multipliers of the plain optimizer."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set the weight decay multipliers of the plain optimizer."""
        self._optimizer.set_wd_mult(args_wd_mult)

    @refusing
    def _average(self, index: Any, grad: Any) -> None:
        several = isinstance(index, (list, tuple))
        indices, gradients = (list(index), list(grad)) if several else ([index], [grad])
        names = [f"optimizer.{one}" for one in indices]
        # Give priority to the weights that the next forward pass needs first.
        self._reducer.reduce(gradients, names, [-one if isinstance(one, int) else 0 for one in indices])


def _check(optimizer: Any) -> None:
    if isinstance(optimizer, DistributedOptimizer):
        raise ValueError("optimizer must be a plain mxnet.optimizer.Optimizer, got a DistributedOptimizer")
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise ValueError(f"optimizer must be an mxnet.optimizer.Optimizer, got a {type(optimizer).__name__}")


@refusing
def _reducer(predivide: Any, num_groups: Any, process_set: Any) -> Reducer:
    return Reducer.checked(predivide, num_groups, process_set)
