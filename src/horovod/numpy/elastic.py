"""Elastic training with NumPy arrays and other objects.

Example::

    state = hvd.elastic.ObjectState(weights=weights, batch=0)

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, batches):
            train_one_batch(state.weights)
            state.commit()

    train(state)
"""

from collections.abc import Callable
from typing import Any

from horovod.common.basics import failures
from horovod.common.elastic import Batch, State, run_fn
from horovod.common.elastic import ObjectState as _ObjectState
from horovod.common.elastic.dataset import ElasticDataset as _ElasticDataset
from horovod.common.elastic.order import batch_of_this_rank as _batch_of_this_rank
from horovod.common.elastic.own import PerRank, RandomNumbers
from horovod.common.frontends import NUMPY
from horovod.numpy.functions import allgather_object, broadcast_object, init, rank, shutdown, size

__all__ = ["Batch", "ElasticDataset", "ObjectState", "PerRank", "RandomNumbers", "State", "batch", "run"]


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
        self._frontend = NUMPY if bcast_object is None else None


class ElasticDataset(_ElasticDataset):  # noqa: D101 - the base class's docstring
    __doc__ = _ElasticDataset.__doc__
    _place_of = rank, size


batch = _batch_of_this_rank(rank, size)


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
