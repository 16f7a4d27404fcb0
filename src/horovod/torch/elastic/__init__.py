"""Elastic training with PyTorch.

Example::

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            ...
            state.commit()

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0))
"""

from collections.abc import Callable
from typing import Any

from horovod.common.basics import failures
from horovod.common.elastic import Batch, State, run_fn
from horovod.common.elastic import ObjectState as _ObjectState
from horovod.common.elastic.order import batch_of_this_rank as _batch_of_this_rank
from horovod.common.elastic.own import PerRank, RandomNumbers
from horovod.common.frontends import TORCH
from horovod.torch.elastic.copying import Checkpoint
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.torch.functions import allgather_object, broadcast_object
from horovod.torch.mpi_ops import init, rank, shutdown, size

__all__ = [
    "Batch",
    "Checkpoint",
    "ElasticSampler",
    "ObjectState",
    "PerRank",
    "RandomNumbers",
    "State",
    "TorchState",
    "batch",
    "run",
]


class ObjectState(_ObjectState):
    """Elastic state whose attributes can be any objects that can be copied and pickled.

    Args:
        bcast_object (Callable, optional): Function that broadcasts an object. Default: this frontend's
            ``broadcast_object``.
        get_rank (Callable, optional): Function that returns the rank. Default: this frontend's ``rank``.
        **kwargs: Attributes and their initial values.
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        gather = allgather_object if bcast_object is None else None
        super().__init__(bcast_object or broadcast_object, get_rank or rank, gather, **kwargs)
        self._frontend = TORCH if bcast_object is None else None


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function ``func(state, *args, **kwargs)`` for elastic training.

    After a failure or a change of the job's ranks, the function is called again with the current state. The function
    must not catch HorovodInternalError or HostsUpdatedInterrupt.

    Args:
        func (Callable): Training function, whose first argument is a ``State``.

    Returns:
        Callable: Function with the same arguments, which returns the result of ``func``.
    """
    return run_fn(func, _reset, failures)


def _reset() -> None:
    shutdown()
    init()


batch = _batch_of_this_rank(rank, size)
