"""Elastic state of Keras models on any backend, and callbacks that update the state in ``fit``."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from horovod._keras.backend import backend_of, build_optimizer, dtype_name, legacy_rates
from horovod.common.basics import failures
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.elastic.agreement import check_shapes, signature
from horovod.common.elastic.dataset import ElasticDataset
from horovod.common.elastic.order import batch_of_this_rank
from horovod.common.elastic.state_checkpoint import StateCheckpoint
from horovod.common.in_sync import is_own, optimizer_variables
from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.process_sets import global_process_set


class ModelState(ObjectState):
    """Elastic state of a Keras model, its optimizer, and additional attributes.

    Args:
        model (Model): Built Keras model.
        optimizer (Optimizer, optional): Optimizer. Default: the one that the model is compiled with.
        backend (Any): Ignored; accepted for compatibility.
        **kwargs: Further attributes and their initial values.

    Raises:
        ValueError: If the model is not built, or an attribute cannot be copied.
    """

    _hvd_frontend: Any

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        del backend
        if not getattr(model, "built", True) or not model.weights:
            raise ValueError(
                f"the model {getattr(model, 'name', model)!r} has no variables yet, so there is nothing to keep; call "
                "model.build(input_shape), or the model on a batch, first"
            )
        frontend = self._hvd_frontend.adapter.frontend
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        build_optimizer(self.optimizer, model)
        self._saved_values: list[Any] = []
        super().__init__(
            bcast_object=lambda obj, root_rank=0: broadcast_object(
                obj, root_rank, "elastic.attributes", frontend=frontend
            ),
            get_rank=self._hvd_frontend.adapter.basics.rank,
            allgather_object=lambda obj, name: allgather_object(obj, name, frontend=frontend),
            **kwargs,
        )
        self._frontend = frontend
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        # Variables that the optimizer has created since the last commit have no saved value. Reset them to zero.
        variables = self._variables()
        for variable, value in zip(variables, self._saved_values, strict=False):
            variable.assign(value)
        for variable in variables[len(self._saved_values) :]:
            variable.assign(np.zeros(tuple(variable.shape), dtype_name(variable)))
        super().restore()

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the variables and attributes, without copying them."""
        return {"variables": self._arrays(), **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a ``state_dict``, even one from a job with a different number of ranks.

        The loaded state counts as committed.

        Raises:
            ValueError: If the state has other attributes or variables than this one. The message names them.
        """
        self._check_loaded(state_dict, ["variables", *self._attributes()])
        variables, values = self._variables(), state_dict["variables"]
        check_shapes([tuple(one.shape) for one in variables], [value.shape for value in values])
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        super().load_state_dict({name: state_dict[name] for name in self._attributes()})

    def sync(self) -> None:
        """Broadcast the state of a surviving rank to all ranks. In a new job, broadcast rank 0's state.

        The surviving rank is the lowest rank that is not new. Variables are broadcast as tensors, attributes as pickled
        objects. Gradients that a rank is still accumulating are not changed.
        """
        root = self._compare()
        everything = [*self._variables(), *legacy_rates(self.optimizer)]
        shared = [variable for variable in everything if not is_own(variable)]
        self._hvd_frontend.adapter.broadcast_variables(shared, root, global_process_set)
        self._sync_attributes(root)
        self._save_variables()

    def _described(self) -> list[str]:
        return [f"model ({signature((tuple(one.shape), one.dtype) for one in self.model.weights)})"]

    def _variables(self) -> list[Any]:
        """Return the current variables, including any that the optimizer has created recently."""
        seen: set[Any] = set()
        chosen = []
        for variable in [*self.model.weights, *optimizer_variables(self.optimizer)]:
            key = self._hvd_frontend.adapter.key(variable)
            if key not in seen:
                seen.add(key)
                chosen.append(variable)
        return chosen

    def _save_variables(self) -> None:
        self._bring_values_here()
        variables, snapshot = self._variables(), self._hvd_frontend.adapter.snapshot
        before = [*self._saved_values, *[None] * len(variables)]
        self._saved_values = [snapshot(one, into) for one, into in zip(variables, before, strict=False)]

    def _arrays(self) -> "list[np.ndarray[Any, Any]]":
        self._bring_values_here()
        return [_array(variable) for variable in self._variables()]

    def _bring_values_here(self) -> None:
        sync = getattr(self.model, "jax_state_sync", None)
        if sync is not None and backend_of(self._hvd_frontend.keras) == "jax":
            sync()  # Update the model's variables first, because on JAX they are out of date while fit runs.


def _array(variable: Any) -> "np.ndarray[Any, Any]":
    value = getattr(variable, "value", variable)
    value = value() if callable(value) else value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # Convert the dtype of bfloat16 values, because NumPy has no bfloat16.
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    return np.array(value)


def make_run(frontend: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator ``hvd.elastic.run`` for a frontend."""

    def reset() -> None:
        # Remember the job object: if another frontend keeps the old job running, init() does not start a new one.
        before = frontend.adapter.frontend.job
        frontend.adapter.shutdown()
        frontend.adapter.basics.init()
        new_epoch = getattr(frontend.adapter, "new_epoch", None)
        if new_epoch is not None and frontend.adapter.frontend.job is not before:
            new_epoch()

    def run(func: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a training function ``func(state, *args, **kwargs)`` for elastic training.

        After a failure or a change of the job's ranks, the function is called again with the current state. It must not
        catch HorovodInternalError, HostsUpdatedInterrupt, or the framework errors that Horovod operations raise.

        Args:
            func (Callable): Training function, whose first argument is a ``State``.

        Returns:
            Callable: Function with the same arguments, which returns the result of ``func``.
        """
        if (convert_errors := getattr(frontend.adapter, "convert_errors", None)) is not None:
            return run_fn(func, reset, failures, convert_errors)
        return run_fn(func, reset, failures)

    return run


class Batches:
    """Mixin that counts an epoch's processed batches.

    With ``steps_per_execution``, Keras runs several batches as one step. Depending on its version, it identifies the
    step by the index of its first or last batch. The index of the last batch can be beyond the end of the epoch.
    """

    _first_batch: int | None = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._first_batch = batch

    def _completed(self, batch: int) -> int:
        """Return how many batches of the epoch are processed at the end of the step that Keras calls ``batch``."""
        model, params = getattr(self, "model", None), getattr(self, "params", None) or {}
        together, steps = getattr(model, "steps_per_execution", None), params.get("steps")
        first = self._first(batch)
        last = max(batch, first + together - 1) if isinstance(together, int) else batch
        return min(last + 1, steps) if steps else last + 1

    def _more(self, batch: int) -> int:
        """Return the number of batches in the current step of ``fit``."""
        return max(1, self._completed(batch) - self._first(batch))

    def _first(self, batch: int) -> int:
        return batch if self._first_batch is None else min(self._first_batch, batch)


class CommitState(Batches):
    """Callback that commits the state after every ``batches_per_commit`` batches and after every epoch.

    Pass it after all other elastic callbacks, so that it commits the values that they update.

    Args:
        state (State): Elastic state.
        batches_per_commit (int): Number of batches between commits. Default: 1.

    Raises:
        ValueError: If ``batches_per_commit`` is not a positive integer.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        if isinstance(batches_per_commit, bool) or not isinstance(batches_per_commit, int) or batches_per_commit < 1:
            raise ValueError(f"batches_per_commit must be an integer of at least 1, got {batches_per_commit!r}")
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self._left = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= self._more(batch)
        if self._left <= 0:
            self._left = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class UpdateBatchState(Batches):
    """Callback that counts the processed batches of an epoch in ``state.batch``.

    The callback resets ``state.batch`` to 0 at the end of the epoch. To resume an interrupted epoch, pass only the
    remaining batches to the first ``fit``, as in ``steps_per_epoch=steps - state.batch``.

    Args:
        state (State): Elastic state with an attribute ``batch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = self._before + self._completed(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._before = 0
        self.state.batch = 0


class UpdateEpochState:
    """Callback that counts completed epochs in ``state.epoch``.

    Programs can use either ``fit(initial_epoch=state.epoch)`` or ``fit(epochs=epochs - state.epoch)``.

    Args:
        state (State): Elastic state with an attribute ``epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._before: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._before = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._before is None:
            self._before = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = (self._before or 0) + epoch + 1


class UpdateDataset(Batches):
    """Callback that records the processed batches of an ElasticDataset and starts its next epoch.

    Place it before ``CommitStateCallback``, and call ``fit`` for one epoch at a time::

        while state.data.epoch < epochs:
            model.fit(iter(state.data), steps_per_epoch=len(state.data), callbacks=[
                hvd.elastic.UpdateDatasetCallback(state.data),
                hvd.elastic.CommitStateCallback(state),
            ])

    Args:
        dataset (ElasticDataset): Dataset of the elastic state.
    """

    def __init__(self, dataset: ElasticDataset) -> None:
        super().__init__()
        self.dataset = dataset

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.dataset.on_batch_end(self._more(batch))


def make_elastic(frontend: Any, module: str) -> dict[str, Any]:
    """Return the contents of the ``elastic`` module of a Keras frontend. ``module`` is the name of that module."""
    plain = frontend.keras.callbacks.Callback

    def join(mixin: type, bases: Sequence[type], name: str) -> type:
        return type(name, (mixin, *bases), {"__module__": module, "__doc__": mixin.__doc__, "_hvd_frontend": frontend})

    basics = frontend.adapter.basics

    def init_checkpoint(
        self: Any,
        directory: "str | os.PathLike[str]",
        keep: int = 3,
        storage_options: "Mapping[str, Any] | None" = None,
    ) -> None:
        rank, size, options = basics.rank, basics.size, storage_options
        StateCheckpoint.__init__(
            self, directory, keep, rank=rank, size=size, copied=copy.deepcopy, storage_options=options
        )

    checkpoint = {"__module__": module, "__doc__": StateCheckpoint.__doc__, "__init__": init_checkpoint}
    dataset = {"__module__": module, "__doc__": ElasticDataset.__doc__, "_place_of": (basics.rank, basics.size)}
    return {
        "Checkpoint": type("Checkpoint", (StateCheckpoint,), checkpoint),
        "ElasticDataset": type("ElasticDataset", (ElasticDataset,), dataset),
        "UpdateDatasetCallback": join(UpdateDataset, (plain,), "UpdateDatasetCallback"),
        "batch": batch_of_this_rank(basics.rank, basics.size),
        "run": make_run(frontend),
        "KerasState": join(ModelState, (), "KerasState"),
        "TensorFlowKerasState": join(ModelState, (), "TensorFlowKerasState"),
        "CommitStateCallback": join(CommitState, (plain,), "CommitStateCallback"),
        "UpdateBatchStateCallback": join(UpdateBatchState, (plain,), "UpdateBatchStateCallback"),
        "UpdateEpochStateCallback": join(UpdateEpochState, (plain,), "UpdateEpochStateCallback"),
    }
