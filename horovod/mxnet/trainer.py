"""DistributedTrainer: Gluon's trainer, with gradients that are averaged over all ranks."""

from typing import Any

import mxnet as mx

from horovod.common.contract.frames import warn_user
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet.arguments import refusing
from horovod.mxnet.compression import Compression
from horovod.mxnet.names import by_number, on_the_wire
from horovod.mxnet.optimizer import DistributedOptimizer
from horovod.mxnet.reduction import Reducer


class DistributedTrainer(mx.gluon.Trainer):
    """Without a KVStore: the ranks' gradients are averaged, and each rank updates its own weights alike.

    ``step(batch_size)`` takes the size of this rank's batch.
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
        """``params``: a ParameterDict, a dict or a list of Parameters, with the same names on all ranks but for what
        MXNet counts (``names.py``). ``optimizer``,
        ``optimizer_params``: as of Gluon's. ``compression``: of the gradients. ``gradient_predivide_factor`` f:
        gradients are divided by f before and by n / f after the sum. ``prefix``: before the gradients' names, to tell
        several trainers apart. ``num_groups``: in so many groups gradients are averaged; 0: each by itself.
        ``process_set``: the ranks that take part.

        Raises ValueError naming what is wrong.
        """
        if isinstance(optimizer, DistributedOptimizer):
            warn_user(
                "DistributedTrainer averages gradients itself: it uses the optimizer that the DistributedOptimizer was "
                "made from"
            )
            optimizer = optimizer._optimizer
        self._hvd_reducer, self._hvd_prefix = _options(
            gradient_predivide_factor, num_groups, process_set, compression, prefix
        )
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        _check_one_device(self._contexts)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """As of Gluon's: averages, and updates the weights."""
        super().step(batch_size, ignore_stale_grad)
        self._hvd_reducer.step_ends(self)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """As of Gluon's, after ``allreduce_grads()``: updates the weights."""
        super().update(batch_size, ignore_stale_grad)
        self._hvd_reducer.step_ends(self)

    @refusing
    def _allreduce_grads(self) -> None:
        wire = on_the_wire(param.name for param in self._params)
        trained = [(wire[param.name], i, param) for i, param in enumerate(self._params) if param.grad_req != "null"]
        trained.sort(key=lambda one: by_number(one[0]))  # groups are made by order
        gradients = [param.list_grad()[0] for _, _, param in trained]
        names = [f"{self._hvd_prefix}gradient.{name}" for name, _, _ in trained]
        self._hvd_reducer.reduce(gradients, names, [-i for _, i, _ in trained])


@refusing
def _options(predivide: Any, num_groups: Any, process_set: Any, compression: Any, prefix: Any) -> tuple[Reducer, str]:
    if prefix is not None and not isinstance(prefix, str):
        raise ValueError(f"prefix is {prefix!r}; accepted is text or None")
    return Reducer.checked(predivide, num_groups, process_set, compression), prefix or ""


@refusing
def _check_one_device(devices: Any) -> None:
    if len(devices or ()) > 1:
        raise ValueError(f"the parameters are on {len(devices)} devices, {devices}; accepted is one in each process")
