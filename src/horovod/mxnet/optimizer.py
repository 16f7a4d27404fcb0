"""Distributed optimizer and Gluon trainer, which average gradients over all ranks before each update."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import mxnet as mx

from horovod.common.compression import check_compression, check_wire, leaves_alone
from horovod.common.contract.log import warn_user
from horovod.common.frontends import MXNET as frontend
from horovod.common.ops import Average
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop import gradients as rules
from horovod.common.training_loop.steps import marks
from horovod.mxnet.arguments import refusing
from horovod.mxnet.compression import Compression
from horovod.mxnet.functions import by_number, on_the_wire
from horovod.mxnet.reductions import reduce


def check_groups(num_groups: Any) -> int:
    """Check ``num_groups`` and convert it to an int.

    Returns:
        The number of groups.

    Raises:
        ValueError: If ``num_groups`` is not an integer, or is negative.
    """
    if isinstance(num_groups, bool) or not isinstance(num_groups, Integral) or num_groups < 0:
        raise ValueError(f"num_groups must be an integer of at least 0, got {num_groups!r}")
    return int(num_groups)


@dataclass(frozen=True)
class Reducer:
    """Averages gradients over the ranks of a process set."""

    predivide: float
    num_groups: int
    process_set: ProcessSet
    compression: Any

    @classmethod
    def checked(
        cls,
        predivide: Any = 1.0,
        num_groups: Any = 0,
        process_set: ProcessSet = global_process_set,
        compression: Any = Compression.none,
    ) -> "Reducer":
        """Check the arguments and create the reduction.

        Returns:
            The reduction.

        Raises:
            ValueError: If an argument is invalid. The message names it.
        """
        if not isinstance(process_set, ProcessSet):
            raise ValueError(f"process_set must be a ProcessSet, got a {type(process_set).__name__}")
        check_compression(compression)
        return cls(rules.check_predivide(predivide, Average), check_groups(num_groups), process_set, compression)

    def reduce(self, gradients: Sequence[Any], names: Sequence[str], priorities: Sequence[int]) -> None:
        """Overwrite gradients with their averages over the ranks.

        The gradients can have different dtypes. Nothing happens if the process set has only one rank. ``names`` must be
        the same on all ranks. ``priorities`` are the operations' priorities in MXNet's engine.
        """
        if not gradients or not rules.anybody_else(self.process_set, frontend.require_job()):
            return
        if not self.num_groups:
            for gradient, name, priority in zip(gradients, names, priorities, strict=True):
                self._reduce([gradient], name, priority, grouped=False)
            return
        for part in rules.parts(range(len(gradients)), self.num_groups):
            # Name the group after its first gradient, so that the engine detects ranks with different numbers of
            # gradients.
            members = [gradients[i] for i in part]
            self._reduce(members, f"{names[part[0]]}.group", max(priorities[i] for i in part), grouped=True)

    def _reduce(self, gradients: list[Any], name: str, priority: int, grouped: bool) -> None:
        wire = max(check_wire(self.compression, gradient, Average, name) for gradient in gradients)
        prescale, postscale = rules.scales(self.predivide)
        how = (Average, name, priority, prescale, postscale, self.process_set, wire, grouped)
        if leaves_alone(self.compression):
            reduce(gradients, True, *how)
            return
        pairs = [self.compression.compress(gradient) for gradient in gradients]
        reduced = reduce([tensor for tensor, _ in pairs], True, *how)
        for gradient, tensor, (_, context) in zip(gradients, reduced, pairs, strict=True):
            result = self.compression.decompress(tensor, context)
            if result is not gradient:
                gradient[:] = result

    def step_ends(self, who: object) -> None:
        """Count a step of the optimizer or trainer."""
        marks.optimizer(who)


_OWN = ("_optimizer", "_reducer")


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Optimizer for Module and custom updaters that averages gradients over the ranks.

    With Gluon, use ``DistributedTrainer`` instead. All other attributes are those of ``optimizer``.

    Args:
        optimizer (mxnet.optimizer.Optimizer): Optimizer that uses the averaged gradients.
        gradient_predivide_factor (float): With n ranks and a factor f, gradients are divided by f before and by n/f
            after the summation. Default: 1.0.
        num_groups (int): Number of groups in which gradients are averaged if MXNet updates several weights at once; 0
            averages each one separately. Default: 0.
        process_set (ProcessSet): Ranks that take part; other ranks use their own gradients. Default: all ranks.

    Raises:
        ValueError: If an argument is invalid. The message names it.
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
        if name in _OWN:
            # During unpickling, neither this object's attributes nor the plain optimizer exist yet, so do not look them
            # up there.
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
        """Create the wrapped optimizer's state for a weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Create the wrapped optimizer's state for a weight, including a 32-bit copy of a 16-bit weight."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average one gradient or a list of gradients in place, then run the wrapped optimizer's update."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update 16-bit weights for which the optimizer keeps a 32-bit copy; see ``update``."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the wrapped optimizer's learning rate."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set the wrapped optimizer's learning rate multipliers."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set the wrapped optimizer's weight decay multipliers."""
        self._optimizer.set_wd_mult(args_wd_mult)

    @refusing
    def _average(self, index: Any, grad: Any) -> None:
        several = isinstance(index, (list, tuple))
        indices, gradients = (list(index), list(grad)) if several else ([index], [grad])
        names = [f"optimizer.{one}" for one in indices]
        # Give the gradients of the first layers the highest priority, because the next forward pass needs these weights
        # first.
        self._reducer.reduce(gradients, names, [-one if isinstance(one, int) else 0 for one in indices])


def _check(optimizer: Any) -> None:
    if isinstance(optimizer, DistributedOptimizer):
        raise ValueError("optimizer must be a plain mxnet.optimizer.Optimizer, got a DistributedOptimizer")
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise ValueError(f"optimizer must be an mxnet.optimizer.Optimizer, got a {type(optimizer).__name__}")


@refusing
def _reducer(predivide: Any, num_groups: Any, process_set: Any) -> Reducer:
    return Reducer.checked(predivide, num_groups, process_set)


class DistributedTrainer(mx.gluon.Trainer):
    """Gluon trainer that averages gradients over the ranks, without a KVStore.

    Each rank updates its own weights in the same way. ``step(batch_size)`` takes the size of this rank's batch.

    Args:
        params (ParameterDict, Mapping or list[Parameter]): Parameters with the same names on all ranks, except for
            MXNet's numbering (``functions.on_the_wire``).
        optimizer (str or Optimizer): Same as in ``mxnet.gluon.Trainer``.
        optimizer_params (dict, optional): Same as in ``mxnet.gluon.Trainer``.
        compression (Compressor): Compression of the gradients. Default: none.
        gradient_predivide_factor (float): With n ranks and a factor f, gradients are divided by f before and by n/f
            after the summation. Default: 1.0.
        prefix (str, optional): Prefix of the gradients' names, to distinguish several trainers.
        num_groups (int): Number of groups in which gradients are averaged; 0 averages each one separately. Default: 0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: If an argument is invalid. The message names it.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            warn_user(
                "DistributedTrainer averages gradients itself; it uses the plain optimizer inside the "
                "DistributedOptimizer"
            )
            optimizer = optimizer._optimizer
        self._hvd_reducer, self._hvd_prefix = _options(
            gradient_predivide_factor, num_groups, process_set, compression, prefix
        )
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        _check_one_device(self._contexts)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Average the gradients and update the weights, like ``mxnet.gluon.Trainer.step``."""
        super().step(batch_size, ignore_stale_grad)
        self._hvd_reducer.step_ends(self)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update the weights after ``allreduce_grads()``, like ``mxnet.gluon.Trainer.update``."""
        super().update(batch_size, ignore_stale_grad)
        self._hvd_reducer.step_ends(self)

    @refusing
    def _allreduce_grads(self) -> None:
        wire = on_the_wire(param.name for param in self._params)
        trained = [(wire[param.name], i, param) for i, param in enumerate(self._params) if param.grad_req != "null"]
        # Sort by name, so that all ranks assign the same gradients to the same group.
        trained.sort(key=lambda one: by_number(one[0]))
        gradients = [param.list_grad()[0] for _, _, param in trained]
        names = [f"{self._hvd_prefix}gradient.{name}" for name, _, _ in trained]
        self._hvd_reducer.reduce(gradients, names, [-i for _, i, _ in trained])


@refusing
def _options(predivide: Any, num_groups: Any, process_set: Any, compression: Any, prefix: Any) -> tuple[Reducer, str]:
    if prefix is not None and not isinstance(prefix, str):
        raise ValueError(f"prefix must be a string or None, got {prefix!r}")
    return Reducer.checked(predivide, num_groups, process_set, compression), prefix or ""


@refusing
def _check_one_device(devices: Any) -> None:
    if len(devices or ()) > 1:
        raise ValueError(f"the parameters must be on one device per process, got {len(devices)} devices, {devices}")
