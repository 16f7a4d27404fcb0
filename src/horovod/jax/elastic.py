"""Elastic training with JAX.

Example::

    state = hvd.elastic.JaxState(params=params, opt_state=opt_state, batch=0)

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, batches):
            state.params, state.opt_state = step(state.params, state.opt_state, ...)
            state.commit()

    train(state)
"""

import copy
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

from horovod._jax.calls import convert_errors
from horovod.common.basics import failures
from horovod.common.elastic import Batch, State, run_fn
from horovod.common.elastic import ObjectState as _ObjectState
from horovod.common.elastic.dataset import ElasticDataset as _ElasticDataset
from horovod.common.elastic.order import batch_of_this_rank as _batch_of_this_rank
from horovod.common.elastic.own import PerRank, RandomNumbers
from horovod.common.elastic.state_checkpoint import StateCheckpoint
from horovod.common.frontends import JAX as frontend
from horovod.jax.functions import allgather_object, basics, broadcast_object

__all__ = [
    "Batch",
    "Checkpoint",
    "ElasticDataset",
    "JaxState",
    "ObjectState",
    "PerRank",
    "RandomNumbers",
    "State",
    "batch",
    "run",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function ``func(state, *args, **kwargs)`` for elastic training.

    After a failure or a change of the job's ranks, the function is called again with the current state. It must not
    catch HorovodInternalError, HostsUpdatedInterrupt, or the errors that JAX raises when a Horovod collective fails.

    Args:
        func (Callable): Training function, whose first argument is a ``State``.

    Returns:
        Callable: Function with the same arguments, which returns the result of ``func``.
    """
    return run_fn(func, _reset, failures, convert_errors)


def _reset() -> None:
    # Each elastic epoch has a new job object, unless another frontend keeps the old job alive.
    before = frontend.job
    basics.shutdown()
    basics.init()
    if frontend.job is not before:
        # Recompile all programs, because they contain ranks, sizes, roots and process set ids, which can change with
        # the epoch.
        jax.clear_caches()


class ObjectState(_ObjectState):
    """Elastic state whose attributes can be any objects that can be copied and pickled.

    Args:
        bcast_object (Callable, optional): Function that broadcasts an object. Default: this frontend's
            ``broadcast_object``.
        get_rank (Callable, optional): Function that returns the rank. Default: this frontend's ``rank``.
        **kwargs: Attributes and their initial values.
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        gather = _gather if bcast_object is None else None
        super().__init__(bcast_object or _broadcast, get_rank or basics.rank, gather, **kwargs)
        self._frontend = frontend if bcast_object is None else None


class JaxState(ObjectState):
    """Elastic state whose attributes are pytrees or other values.

    Example::

        state = hvd.elastic.JaxState(params=params, opt_state=opt_state, epoch=0)

    A commit copies the arrays, so compiled steps may donate the originals.

    Args:
        **kwargs: Attributes and their initial values.
    """


class ElasticDataset(_ElasticDataset):  # noqa: D101 - the base class's docstring
    __doc__ = _ElasticDataset.__doc__
    _place_of = basics.rank, basics.size


batch = _batch_of_this_rank(basics.rank, basics.size)


class Checkpoint(StateCheckpoint):  # noqa: D101 - the base class's docstring
    __doc__ = StateCheckpoint.__doc__

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 3, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        options = storage_options
        super().__init__(
            directory, keep, rank=basics.rank, size=basics.size, copied=copy.deepcopy, storage_options=options
        )


def _broadcast(obj: Any, root_rank: int = 0) -> Any:
    return broadcast_object(obj, root_rank, name="elastic.attributes")


def _gather(obj: Any, name: str) -> list[Any]:
    return allgather_object(obj, name=name)
