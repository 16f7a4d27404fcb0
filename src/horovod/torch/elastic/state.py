"""Elastic state of a PyTorch program: models, optimizers, samplers and other values."""

import contextlib
import weakref
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch

from horovod.common.elastic.agreement import Standing
from horovod.common.elastic.state import Keeping, ObjectState, cannot_be_copied, check_states_match
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.frontends import TORCH
from horovod.torch.elastic.copying import Copies, Pair
from horovod.torch.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    check_references,
    get_handler_registry,
    handler_for,
    set_handler_registry,
    takes_root,
)
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.sharded import ShardedStateHandler
from horovod.torch.elastic.taken_steps import Steps
from horovod.torch.functions import allgather_object, broadcast_object
from horovod.torch.mpi_ops import barrier, rank

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]

# Snapshot of the state that forward passes modify, so that a failed step can be repeated.
#
# The snapshot contains the models' buffers, such as running statistics of normalization layers, and the state of the
# random number generators, which dropout uses.


class BeforeForward:
    """Snapshot of buffers and random generator state, taken at the first forward pass of a step."""

    def __init__(self, callback: Callable[[], None] = lambda: None) -> None:
        """Create an object without a snapshot. ``callback`` is called before the first forward pass of each step."""
        self._callback = callback
        self._hooks: dict[int, tuple[torch.nn.Module, Any]] = {}
        # True until the first forward pass of the next training step.
        self._armed = True
        # For each buffer of the models: the buffer, and the copy of it made before the step.
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._random: torch.Tensor | None = None
        self._random_of_devices: dict[int, torch.Tensor] = {}

    def watch(self, models: Sequence[torch.nn.Module]) -> None:
        """Watch ``models`` in place of the previous models."""
        wanted = {id(model): model for model in models}
        for key in [key for key in self._hooks if key not in wanted]:
            self._hooks.pop(key)[1].remove()
        for key, model in wanted.items():
            if key not in self._hooks:
                self._hooks[key] = model, model.register_forward_pre_hook(_Hook(self))
        self.stepped()

    def stepped(self) -> None:
        """End the step, keeping the changes made by its forward passes."""
        self._armed = True
        self._random = None

    def begins(self, model: torch.nn.Module) -> None:
        """Take the snapshot if this is the first forward pass of a step.

        The hook calls this method before each forward pass.
        """
        if not self._armed or not model.training:
            return
        self._armed = False
        self._callback()
        self._random = torch.default_generator.get_state()
        if torch.cuda.is_initialized():
            self._random_of_devices = dict(enumerate(torch.cuda.get_rng_state_all()))
        now = [buffer for watched, _ in self._hooks.values() for buffer in watched.buffers()]
        with torch.no_grad():
            if [id(buffer) for buffer in now] != [id(buffer) for buffer, _ in self._buffers]:
                self._buffers = [(buffer, buffer.clone()) for buffer in now]
            else:
                for buffer, copy in self._buffers:
                    copy.copy_(buffer)

    def put_back(self) -> None:
        """If a step has begun, restore the snapshot, so that the step can be repeated."""
        if self._random is None:
            return
        with torch.no_grad():
            for buffer, copy in self._buffers:
                buffer.copy_(copy)
        torch.default_generator.set_state(self._random)
        for device, state in self._random_of_devices.items():
            torch.cuda.set_rng_state(state, device)
        self.stepped()


class _Hook:
    """Forward pre-hook of a model that takes a snapshot before the first forward pass of a step.

    In copies and pickles of the model, a placeholder takes the place of the hook.
    """

    def __init__(self, before: BeforeForward) -> None:
        self._before = weakref.ref(before)

    def __call__(self, model: torch.nn.Module, _inputs: Any) -> None:
        if (before := self._before()) is not None:
            before.begins(model)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _Nothing, ()

    def __deepcopy__(self, _memo: Any) -> "_Nothing":
        return _Nothing()


class _Nothing:
    """Placeholder for a ``_Hook`` in copies and pickles of a model. Calling it does nothing."""

    def __call__(self, *_: Any) -> None:
        return None


class TorchState(Keeping, ObjectState):
    """Elastic state of a PyTorch program, which handles each value according to its type.

    Example::

        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)

    After a failure in ``backward()``, training resumes from the current state of the ranks and no step is lost. Running
    statistics and torch's random state are restored to the beginning of the step that is repeated. This requires
    distributed optimizers on the CPU, which must step in turns if there are several. The program must also count each
    step right after taking it, in an integer attribute or with an ElasticSampler (``taken_steps``). In all other cases
    training resumes from the last commit (``horovod.common.elastic.agreement``).

    Args:
        model (torch.nn.Module, optional): Model.
        optimizer (torch.optim.Optimizer, optional): Optimizer.
        always_restore (bool): Return to the last commit after failures in ``backward()`` too. Use it for a program that
            updates a counter after each step, but cannot resume from there. Default: False.
        **kwargs: Additional attributes. A Module, an Optimizer, an ElasticSampler, and any object with ``state_dict()``
            and ``load_state_dict()`` keeps its identity; restored or received state is loaded into it.

    Raises:
        ValueError: If an attribute cannot be copied, or an ordinary attribute refers to one of these objects.
    """

    _frontend = TORCH

    def __init__(
        self, model: Any = None, optimizer: Any = None, *, always_restore: bool = False, **kwargs: Any
    ) -> None:
        members = {name: value for name, value in (("model", model), ("optimizer", optimizer)) if value is not None}
        members.update(kwargs)
        handlers = {
            name: handler for name, value in members.items() if (handler := _handler_for(name, value)) is not None
        }
        check_references({name: value for name, value in members.items() if name not in handlers}, handlers)
        object.__setattr__(self, "_handlers", {})
        if model is None:
            self.model = None
        if optimizer is None:
            self.optimizer = None
        super().__init__(
            bcast_object=broadcast_object,
            get_rank=rank,
            allgather_object=allgather_object,
            **{name: value for name, value in members.items() if name not in handlers},
        )
        for name, handler in handlers.items():
            object.__setattr__(self, name, handler.value)
        self._handlers = handlers
        self._sharded = [one for one in handlers.values() if isinstance(one, ShardedStateHandler)]
        # Finish all background copies now if there is a sharded optimizer, because sharded optimizers do not report
        # their steps.
        if self._sharded:
            for handler in handlers.values():
                handler.save()
        self._copies = Copies()
        self._commits = 0
        # True once this rank has sent or received a state in ``sync``.
        self._synced = False
        self._always_restore = always_restore
        self._steps = Steps(self._stepped, self._begins_step, self._counted)
        self._before = BeforeForward(self._steps.forward)
        self._watch()

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            self._copies.wait()
            handlers[name].set_value(value)
            object.__setattr__(self, name, value)
            self._watch()
        else:
            object.__setattr__(self, name, value)

    def _watch(self) -> None:
        handlers = self._handlers.values()
        optimizers = [one.value for one in handlers if isinstance(one.value, torch.optim.Optimizer)]
        self._steps.watch([one for one in optimizers if not hasattr(one, "_hvd_shards")])
        self._before.watch([one.value for one in handlers if isinstance(one.value, torch.nn.Module)])

    def _counted(self) -> tuple[Any, ...]:
        """Return the program's counters: all integer attributes of the state, and the samplers' positions."""
        found: list[Any] = [value for name in self._names if isinstance(value := getattr(self, name), Integral)]
        found += [one.value.place for one in self._handlers.values() if isinstance(one.value, ElasticSampler)]
        return tuple(found)

    def save(self) -> None:
        """Save the state. This method returns once everything that a forward pass can change has been copied.

        Parameters and optimizer state are copied during the next step, until an optimizer changes them or ``wait`` is
        called. With a ShardedOptimizer, all ranks must call this together after the first ``sync``.

        Raises:
            HorovodInternalError: If a rank was lost, and the state has a ShardedOptimizer.
        """
        if self._synced:
            for handler in self._sharded:
                handler.send()
            if self._sharded:
                barrier()
            for handler in self._sharded:
                handler.confirm()
        super().save()
        self._save(self._handlers)
        self._commits += 1
        self._steps.committed()

    def _save(self, handlers: dict[str, StateHandler]) -> None:
        self._copies.wait()
        copies: list[Pair] = []
        steady = self._steps.parameters()
        try:
            for name, handler in handlers.items():
                try:
                    handler.save_beside(copies, steady)
                except Exception as error:
                    raise cannot_be_copied(name, handler.value, error) from error
        finally:
            self._copies.begin(copies)

    def _begins_step(self) -> None:
        if unsaved := {name: handler for name, handler in self._handlers.items() if handler.unsaved}:
            self._save(unsaved)
        self._copies.wait()

    def _stepped(self) -> None:
        self._before.stepped()

    def wait(self) -> None:
        """Wait until the copies of the last commit are complete.

        Call this method between a commit and code that modifies parameters directly. Otherwise, the commit could
        contain some of the new values. A warning reports such a commit, unless the code used ``tensor.data``.
        """
        self._copies.wait()

    def restore(self) -> None:
        for handler in self._sharded:
            with contextlib.suppress(Exception):  # Ignore errors, because restore() overwrites the parameters.
                handler.value.wait_for_parameters()
        self._begins_step()
        for handler in self._handlers.values():
            handler.restore()
        super().restore()
        self._before.stepped()
        self._steps.restored()

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()
        super().reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the current state, keyed by attribute name.

        An entry is the value's ``state_dict()`` if it has one, and the value itself otherwise. The result is not a
        copy.

        Raises:
            ValueError: If the state has a ShardedOptimizer.
        """
        self._refuse_sharded("state_dict")
        made = {name: handler.value.state_dict() for name, handler in self._handlers.items()}
        return {**made, **self._attributes()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of ``state_dict``, even from a job with a different number of ranks.

        The loaded state is considered committed.

        Raises:
            ValueError: If the attributes differ (the message names them), or the state contains a ShardedOptimizer.
        """
        self._refuse_sharded("load_state_dict")
        self._check_loaded(state_dict, [*self._attributes(), *self._handlers])
        self._copies.wait()
        for name, handler in self._handlers.items():
            handler.value.load_state_dict(state_dict[name])
        self._set_attributes({name: state_dict[name] for name in self._attributes()})
        self.save()

    def _refuse_sharded(self, method: str) -> None:
        if self._sharded:
            raise ValueError(
                f"{method} must not be called for a state with a hvd.ShardedOptimizer, because each rank has a part "
                "of it; use hvd.save_checkpoint and hvd.load_checkpoint"
            )

    def check_host_updates(self) -> None:
        if any(getattr(getattr(one.value, "_hvd_strategy", None), "serving", False) for one in self._handlers.values()):
            # Ranks of a parameter server do not reach this point together. They notice changes only through failures.
            self._progress += 1
            return
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt as interrupt:
            if self._sharded:  # Synchronize even without new ranks, to redistribute the optimizer's state.
                interrupt.skip_sync = False
            raise

    def _in_a_step(self) -> bool:
        return self._steps.in_a_step() or super()._in_a_step()

    # Methods through which elastic training asks whether it can keep the current state (interface ``Keeping``).

    def failed(self, error: HorovodInternalError) -> None:
        bound = self._sharded or self._of_rank_0() or not self._steps.can_hand_over()
        if getattr(error, "handed_over", False) and bound:
            error.handed_over = False  # type: ignore[attr-defined]
        super().failed(error)
        for handler in self._sharded:  # Discard gathers, whose errors would otherwise be raised in the next job.
            handler.value._hvd_shards.gathers.discard()
        if self._whole:
            self._before.put_back()

    def before_step(self, error: HorovodInternalError) -> bool:
        return not (self._always_restore or self._sharded or self._of_rank_0()) and self._steps.before_step(error)

    def _of_rank_0(self) -> list[str]:
        """Return the names of values with an old-style handler, whose ``sync`` always sends rank 0's state."""
        return [name for name, handler in self._handlers.items() if not takes_root(handler)]

    def standing(self, whole: bool) -> Standing:
        if not self._synced:
            return Standing()
        # With a sharded optimizer, this rank cannot keep its current state, because recovery uses the last commit.
        whole = whole and not self._sharded
        return Standing(self._steps.rounds, whole, self._commits, new=False, updates=self._steps.completed)

    def agree(self, standing: Standing) -> list[Standing]:
        names = [*self._names, *(f"{name}{one.describe()}" for name, one in self._handlers.items())]
        descriptions = allgather_object((standing, sorted(names)), name="elastic.state")
        check_states_match([(names, one.new) for one, names in descriptions], rank())
        standings = [one for one, _ in descriptions]
        if standings[0].new and not all(one.new for one in standings) and (old := self._of_rank_0()):
            raise ValueError(
                f"the handler of the state's attribute {old[0]!r} must have sync(root): its sync() sends the value of "
                "rank 0, but rank 0 is new and has none"
            )
        return standings

    def take(self, root: int) -> None:
        self._copies.wait()
        old = self._of_rank_0()
        root = 0 if old else root
        for name, handler in self._handlers.items():
            handler.sync(*([] if name in old else [root]))
        mine = self._attributes(), self._steps.gradients()
        attributes, gradients = broadcast_object(mine, root, name="elastic.attributes")
        self._steps.reset_gradients(gradients)
        self._set_attributes(attributes)
        self._take_own(root)

    def adopted(self, root: Standing) -> None:
        self._steps.rounds, self._steps.completed, self._commits = root.steps, root.updates, root.commits
        self._synced = True
        self._steps.go_on()
        if self._sharded:  # All ranks now have this state, so it counts as committed even if the next commit fails.
            super().save()
            self._save(self._handlers)


def _handler_for(name: str, value: Any) -> StateHandler | None:
    return ShardedStateHandler(value) if hasattr(value, "_hvd_shards") else handler_for(name, value)
