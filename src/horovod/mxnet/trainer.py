"""DistributedTrainer: Gluon's trainer with gradients that are averaged over all ranks."""

from typing import Any

import mxnet as mx

from horovod.common.contract.log import warn_user
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet.arguments import refusing
from horovod.mxnet.compression import Compression
from horovod.mxnet.names import by_number, on_the_wire
from horovod.mxnet.optimizer import DistributedOptimizer
from horovod.mxnet.reduction import Reducer


class DistributedTrainer(mx.gluon.Trainer):
    """Gluon trainer that averages gradients over the ranks, without a KVStore.

    Each rank updates its own weights in the same way. ``step(batch_size)`` takes the size of this rank's batch.

    Args:
        params (ParameterDict, Mapping or list[Parameter]): Parameters with the same names on all ranks, except for
            MXNet's numbering (``names.py``).
        optimizer (str or Optimizer): As for ``mxnet.gluon.Trainer``.
        optimizer_params (dict, optional): As for ``mxnet.gluon.Trainer``.
        compression (Compressor): Compression of the gradients. Default: none.
        gradient_predivide_factor (float): With n ranks and a factor f, gradients are divided by f before and by n/f
            after the summation. Default: 1.0.
        prefix (str, optional): Prefix of the gradients' names, to distinguish several trainers.
        num_groups (int): Number of groups in which gradients are averaged; 0 averages each one separately. Default: 0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: An argument is invalid; the message names it.
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
        trained.sort(key=lambda one: by_number(one[0]))  # the order determines the groups
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
