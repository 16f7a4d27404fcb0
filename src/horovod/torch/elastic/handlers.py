"""Handlers that save, restore and synchronize the values of an elastic state.

There is one handler per type of value.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from horovod.common.elastic.agreement import signature
from horovod.common.elastic.order import Resumes
from horovod.common.elastic.state import cannot_be_copied
from horovod.torch.elastic.copying import Later, Pair, copied, reserve
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """Base class of handlers. A handler saves, restores and synchronizes one value.

    ``sync(root)`` gives all ranks the value of rank ``root``. ``sync`` of an old-style handler takes no argument and
    gives all ranks the value of rank 0. After a failure, all ranks then get the value from rank 0's last commit.
    """

    unsaved = False
    """True until the first copy is made. Large values are first copied when a step is about to change them."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Save a copy of the value for ``restore``."""
        raise NotImplementedError

    def save_beside(self, copies: list[Pair], steady: frozenset[int]) -> None:
        """Save the value, leaving large copies to a background thread.

        Pending copies are added to ``copies``. ``steady`` contains the addresses of the tensors that only optimizers
        modify.
        """
        self.save()

    def restore(self) -> None:
        """Restore the value saved by the last commit."""
        raise NotImplementedError

    def sync(self, root: int = 0) -> None:
        """Broadcast the value from one rank to all other ranks, without saving it.

        Args:
            root (int): Rank whose value all ranks take. Default: 0.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt the value when the job's ranks have changed. Does nothing by default."""

    def describe(self) -> str:
        """Return a description of the value's structure, which must be the same on all ranks."""
        return ""

    def set_value(self, value: Any) -> None:
        """Replace the value of the state, and save the new value."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Handler for the parameters and buffers of a ``torch.nn.Module``."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self._frozen: dict[int, int] = {}
        self._saved: dict[str, Any] = reserve(model.state_dict()) or {}
        self.unsaved = bool(self._saved)
        if not self.unsaved:
            self.save()

    def save(self) -> None:
        """Save the state, reusing the memory of the previous copy if possible."""
        self._saved = copied(self.value.state_dict(), self._saved)
        self._frozen = self._versions_of_frozen()
        self.unsaved = False

    def save_beside(self, copies: list[Pair], steady: frozenset[int]) -> None:
        # Copy a frozen parameter in the background only if it is unchanged since the last commit. A frozen parameter
        # that has changed could be a running average, which the program can modify at any time.
        frozen = self._versions_of_frozen()
        rest = frozen if self.unsaved else dict(self._frozen.items() & frozen.items())
        later = Later(copies, steady.union(rest))
        self._saved, self._frozen = copied(self.value.state_dict(), self._saved, later), frozen
        self.unsaved = False

    def _versions_of_frozen(self) -> dict[int, int]:
        """Map each frozen parameter's address to the parameter's version counter."""
        return {p.data_ptr(): p._version for p in self.value.parameters() if not p.requires_grad}

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def describe(self) -> str:
        tensors = (one for one in self.value.state_dict().values() if isinstance(one, torch.Tensor))
        return f" ({signature((one.shape, one.dtype) for one in tensors)})"

    def sync(self, root: int = 0) -> None:
        state = self.value.state_dict()
        broadcast_parameters({k: v for k, v in state.items() if isinstance(v, torch.Tensor)}, root_rank=root)
        rest = {k: v for k, v in state.items() if not isinstance(v, torch.Tensor)}
        if rest:
            state.update(broadcast_object(rest, root, name="elastic.model.extra"))
            self.value.load_state_dict(state)


class OptimizerStateHandler(StateHandler):
    """Handler for the state of a ``torch.optim.Optimizer``."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self._saved: dict[str, Any] = reserve(optimizer.state_dict()) or {}
        self.unsaved = bool(self._saved)
        if not self.unsaved:
            self.save()

    def save(self) -> None:
        self._saved = copied(self.value.state_dict(), self._saved)
        self.unsaved = False

    def save_beside(self, copies: list[Pair], steady: frozenset[int]) -> None:
        self._saved = copied(self.value.state_dict(), self._saved, Later(copies, None))
        self.unsaved = False

    def restore(self) -> None:
        # Load a copy, because the optimizer would otherwise use the saved tensors and modify them in place.
        self.value.load_state_dict(copied(self._saved, None))

    def sync(self, root: int = 0) -> None:
        broadcast_optimizer_state(self.value, root_rank=root)


class SamplerStateHandler(StateHandler):
    """Handler for an ``ElasticSampler``.

    The sampler's state in any given step is the same on all ranks.
    """

    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)
        self._saved = sampler.state_dict()

    def save(self) -> None:
        self._saved = self.value.state_dict()

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self, root: int = 0) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), root, name="elastic.sampler"))

    def reset(self) -> None:
        self.value.reset()


@runtime_checkable
class HasState(Protocol):
    """Protocol of objects that have ``state_dict()`` and ``load_state_dict()``."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


class StateDictHandler(StateHandler):
    """Handler for objects with ``state_dict()`` and ``load_state_dict(...)``, such as learning rate schedulers.

    Restoring replaces the state of the object, not the object itself.
    """

    def __init__(self, value: HasState) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copied(self.value.state_dict(), None)

    def restore(self) -> None:
        self.value.load_state_dict(copied(self._saved, None))

    def sync(self, root: int = 0) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), root, name="elastic.state_dict"))

    def reset(self) -> None:
        if isinstance(self.value, Resumes):
            self.value.reset()


class ScalerStateHandler(StateDictHandler):
    """Handler for a ``torch.amp.GradScaler``.

    A scaler's ``state_dict()`` does not include which optimizers were unscaled since the last ``update()``. ``restore``
    therefore calls ``update()``. Without it, a repeated step would unscale them twice and fail.
    """

    def restore(self) -> None:
        super().restore()
        self._begin_step()

    def sync(self, root: int = 0) -> None:
        super().sync(root)
        self._begin_step()

    def _begin_step(self) -> None:
        # If the scaler has not scaled a loss yet, skip update(), which would raise an error.
        if getattr(self.value, "_scale", None) is not None:
            self.value.update(self.value.get_scale())


_registry: list[tuple[type, Callable[[Any], StateHandler]]] = [
    (ElasticSampler, SamplerStateHandler),
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    # PyTorch 2.1 has GradScaler only in torch.cuda.amp, not in torch.amp.
    (getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler), ScalerStateHandler),
    (HasState, StateDictHandler),
]


def get_handler_registry() -> list[tuple[type, Callable[[Any], StateHandler]]]:
    """Return the list of (type, handler class) pairs.

    A value gets the handler of the first pair whose type matches.
    """
    return _registry


def set_handler_registry(registry: list[tuple[type, Callable[[Any], StateHandler]]]) -> None:
    """Replace the list of (type, handler class) pairs that determines each value's handler."""
    global _registry
    _registry = registry


def handler_for(name: str, value: Any) -> StateHandler | None:
    """Return a handler for the value, or None if the value needs no handler.

    Raises:
        ValueError: If the value cannot be copied.
    """  # noqa: DOC501
    try:
        return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)
    except Exception as error:
        raise cannot_be_copied(name, value, error) from error


def check_references(attributes: Mapping[str, Any], handlers: Mapping[str, StateHandler]) -> None:
    """Check that no ordinary attribute of the state refers to a value that has a handler.

    After a restore or a sync, such an attribute would refer to a copy of that value.

    Raises:
        ValueError: If there is such an attribute.
    """
    for name, value in attributes.items():
        for kept, handler in handlers.items():
            if any(one is handler.value for one in _parts(value)):
                raise ValueError(
                    f"the state's attribute {name!r} ({type(value).__name__}) must not refer to its {kept!r}, unless "
                    "it has state_dict() and load_state_dict(): after a failure it would refer to a copy. Keep it out "
                    "of the state"
                )


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    return getattr(value, "__dict__", {}).values()


def takes_root(handler: StateHandler) -> bool:
    """Return True if ``sync`` takes a root. An old-style handler takes none and always sends rank 0's value."""
    return bool(inspect.signature(handler.sync).parameters)
