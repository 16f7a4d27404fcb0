"""Elastic training with TensorFlow: eager mode, tf.function, and sessions of tf.compat.v1.

Example::

    state = hvd.elastic.TensorFlowState(variables=[*model.variables, *optimizer.variables], batch=0)

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, batches):
            train_one_batch()
            state.commit()

    train(state)
"""

import contextlib
import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.common import dtypes, ops
from horovod.common.basics import failures
from horovod.common.elastic import Batch, State, run_fn
from horovod.common.elastic import ObjectState as _ObjectState
from horovod.common.elastic.agreement import check_shapes, signature
from horovod.common.elastic.dataset import ElasticDataset as _ElasticDataset
from horovod.common.elastic.order import batch_of_this_rank as _batch_of_this_rank
from horovod.common.elastic.own import PerRank, RandomNumbers
from horovod.common.elastic.state_checkpoint import StateCheckpoint
from horovod.common.frontends import TENSORFLOW, Frontend
from horovod.tensorflow.functions import allgather_object, broadcast_object, broadcast_variables
from horovod.tensorflow.mpi_ops import init, rank, shutdown, size
from horovod.tensorflow.util import _executing_eagerly, convert_errors

__all__ = [  # noqa: F822
    "Batch",
    "Checkpoint",
    "ElasticDataset",
    "ObjectState",
    "PerRank",
    "RandomNumbers",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "batch",
    "run",
]

Array = np.ndarray[Any, Any]

# Memory of operations whose wait was interrupted, kept alive because the engine can still access it.
_parked: list[Array] = []


def arrays_of(root: int, arrays: Sequence[Array], name: str, frontend: Frontend) -> list[Array]:
    """Broadcast the arrays of rank ``root`` to all ranks.

    Arrays are sent as bytes, so every dtype works except that of Python objects.

    Args:
        root: Rank whose arrays are sent.
        arrays: This rank's arrays. Shapes and dtypes must be equal on all ranks.
        name: Name prefix of the operations.
        frontend: Frontend that submits the operations.

    Returns:
        The root's arrays. On all ranks except possibly the root, they are in newly allocated memory.

    Raises:
        HorovodInternalError: If a peer is lost.
    """
    from horovod import _core

    mine = frontend.require_job().rank == root
    found = []
    for number, array in enumerate(arrays):
        result = np.ascontiguousarray(array).reshape(array.shape) if mine else np.empty(array.shape, array.dtype)
        found.append(result)
        if not result.nbytes:
            continue
        at, shape, called = result.ctypes.data, (result.nbytes,), f"{name}.{number}"
        try:
            frontend.run(
                _core.KIND_BROADCAST, called, at, at, shape, dtypes.UINT8, ops.Sum, root, 1.0, 1.0, 0, None, "", 0
            ).wait()
        except Exception:
            raise
        except BaseException:
            # Keep the memory alive: Ctrl-C has interrupted the wait, but the operation is still in flight.
            _parked.append(result)
            raise
    return found


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function ``func(state, *args, **kwargs)`` for elastic training.

    After a failure or a change of the job's ranks, the function is called again with the current state. It must not
    catch HorovodInternalError, HostsUpdatedInterrupt, or the UnknownError of Horovod operations.

    Args:
        func (Callable): Training function, whose first argument is a ``State``.

    Returns:
        Callable: Function with the same arguments, which returns the result of ``func``.
    """
    return run_fn(func, _reset, failures, convert_errors)


def _reset() -> None:
    shutdown()
    init()


class ObjectState(_ObjectState):
    """Elastic state whose attributes can be any objects that can be copied and pickled.

    Args:
        bcast_object (Callable, optional): Function that broadcasts an object. Default: this frontend's.
        get_rank (Callable, optional): Function that returns the rank. Default: this frontend's.
        **kwargs: Attributes and their initial values.
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        gather = _gather if bcast_object is None else None
        super().__init__(bcast_object or _broadcast, get_rank or rank, gather, **kwargs)
        self._frontend = TENSORFLOW if bcast_object is None else None


class ElasticDataset(_ElasticDataset):  # noqa: D101 - the base class's docstring
    __doc__ = _ElasticDataset.__doc__
    _place_of = rank, size


batch = _batch_of_this_rank(rank, size)


class Checkpoint(StateCheckpoint):  # noqa: D101 - the base class's docstring
    __doc__ = StateCheckpoint.__doc__

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 3, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        options = storage_options
        super().__init__(directory, keep, rank=rank, size=size, copied=copy.deepcopy, storage_options=options)


def _broadcast(obj: Any, root_rank: int = 0) -> Any:
    return broadcast_object(obj, root_rank, name="elastic.attributes")


def _gather(obj: Any, name: str) -> list[Any]:
    return allgather_object(obj, name=name)


class TensorFlowState(ObjectState):
    """Elastic state of TensorFlow variables and additional attributes.

    Args:
        variables (Sequence, optional): Variables to save. Default: all global variables of the session's graph.
        session (tf.compat.v1.Session, optional): Session that has initialized the variables; None in eager mode.
        **kwargs: Additional attributes and their initial values.

    Raises:
        ValueError: If ``variables`` is missing in eager mode, which has no global variables, or an attribute cannot be
            copied.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None:
            if session is None and _executing_eagerly():
                raise ValueError(
                    "variables must be given in eager mode, in which TensorFlow keeps no list of them: pass "
                    "model.variables and those of the optimizer, once they exist"
                )
            variables = tf.compat.v1.global_variables()
        self.variables = list(variables)
        self.session = session
        if session is not None:
            # Create the ops that read and assign the variables up front, because the program may finalize the graph
            # before they are needed.
            with session.graph.as_default():
                self._inputs = [tf.compat.v1.placeholder(v.dtype.base_dtype, v.shape) for v in self.variables]
                self._assign = [tf.compat.v1.assign(v, g) for v, g in zip(self.variables, self._inputs, strict=True)]
        self._values: list[Any] = []
        super().__init__(**kwargs)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        if self.session is not None:
            self.session.run(self._assign, dict(zip(self._inputs, self._values, strict=True)))
        else:
            for variable, value in zip(self.variables, self._values, strict=True):
                variable.assign(value)
        super().restore()

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the variables and attributes, without copying them."""
        values = self.session.run(self.variables) if self.session is not None else [v.numpy() for v in self.variables]
        return {"variables": values, **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a ``state_dict``, even one from a job with a different number of ranks.

        The loaded state is considered committed.

        Raises:
            ValueError: If ``state_dict`` has other attributes or variables than this state. The message names them.
        """
        self._check_loaded(state_dict, ["variables", *self._attributes()])
        values = state_dict["variables"]
        check_shapes([tuple(v.shape.as_list()) for v in self.variables], [value.shape for value in values])
        self._values = values
        self.restore()
        super().load_state_dict({name: state_dict[name] for name in self._attributes()})

    def sync(self) -> None:
        """Broadcast the state of a surviving rank to all ranks. In a new job, broadcast rank 0's state.

        The surviving rank is the lowest rank that is not new. Variables are broadcast as tensors, attributes as pickled
        objects.
        """
        root = self._compare()
        if self.session is None:
            broadcast_variables(self.variables, root_rank=root)
        # Broadcast without TensorFlow ops. The graph might be finalized, and each root rank would need an op of its
        # own.
        else:
            values = self._travelled(self.session.run(self.variables), root)
            self.session.run(self._assign, dict(zip(self._inputs, values, strict=True)))
        self._sync_attributes(root)
        self._save_variables()

    def begin_step(self) -> None:
        with self._in_session():
            super().begin_step()

    def _in_a_step(self) -> bool:
        with self._in_session():
            return super()._in_a_step()

    def _in_session(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.session is None else self.session.as_default()

    def _travelled(self, values: Sequence[Any], root: int) -> list[Any]:
        """Broadcast the root's values: arrays as tensors, and strings (of varying length) as pickled objects."""
        texts = [number for number, one in enumerate(self.variables) if one.dtype.base_dtype == tf.string]
        rest = [number for number in range(len(values)) if number not in texts]
        arrays = arrays_of(root, [np.asarray(values[number]) for number in rest], "elastic.variables", TENSORFLOW)
        found = dict(zip(rest, arrays, strict=True))
        if texts:
            found.update(zip(texts, _broadcast([values[number] for number in texts], root), strict=True))
        return [found[number] for number in range(len(values))]

    def _described(self) -> list[str]:
        known = ((tf.TensorShape(one.shape), tf.as_dtype(one.dtype).base_dtype) for one in self.variables)
        return [f"variables ({signature((shape.as_list(), dtype) for shape, dtype in known)})"]

    def _save_variables(self) -> None:
        if self.session is not None:
            self._values = self.session.run(self.variables)
        else:
            self._values = [tf.identity(variable) for variable in self.variables]


def __getattr__(name: str) -> Any:
    if name != "TensorFlowKerasState":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Import this module lazily, because it imports Keras.
    from horovod.tensorflow.keras.elastic import TensorFlowKerasState

    globals()[name] = TensorFlowKerasState
    return TensorFlowKerasState
