"""How each kind of value that an elastic state has is saved, restored and given to all ranks."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from horovod.common.elastic.agreement import signature
from horovod.common.elastic.state import cannot_be_copied
from horovod.common.elastic.walk import Resumes
from horovod.torch.elastic.copying import Later, Pair, copied, reserve
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """Saves, restores and synchronises one value. A subclass says how; ``root``: the rank whose value all get. With one
    whose ``sync`` takes no root, as in old programs, all get what rank 0 has, after failures that of its last commit.
    """

    unsaved = False
    """Its first value is not copied yet: it is large, and will be when a step is about to change it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        raise NotImplementedError

    def save_beside(self, copies: list[Pair], steady: frozenset[int]) -> None:
        """``save``, but for what may be copied a little later (``copying``), which is added to ``copies``. ``steady``:
        addresses of tensors that only optimizers change."""
        self.save()

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self, root: int = 0) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """The members have changed."""

    def describe(self) -> str:
        """What has to be the same on all ranks, in words."""
        return ""

    def set_value(self, value: Any) -> None:
        """Another one takes its place, which counts as committed."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Of a ``torch.nn.Module``: parameters and buffers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self._frozen: dict[int, int] = {}
        self._saved: dict[str, Any] = reserve(model.state_dict()) or {}
        self.unsaved = bool(self._saved)
        if not self.unsaved:
            self.save()

    def save(self) -> None:
        """Into the memory of the last copy, where it fits: a commit allocates nothing."""
        self._saved = copied(self.value.state_dict(), self._saved)
        self._frozen = self._versions_of_frozen()
        self.unsaved = False

    def save_beside(self, copies: list[Pair], steady: frozenset[int]) -> None:
        # Frozen parameters that have rested since the last commit: others are averages, which programs change at any
        # time.
        frozen = self._versions_of_frozen()
        rest = frozen if self.unsaved else dict(self._frozen.items() & frozen.items())
        later = Later(copies, steady.union(rest))
        self._saved, self._frozen = copied(self.value.state_dict(), self._saved, later), frozen
        self.unsaved = False

    def _versions_of_frozen(self) -> dict[int, int]:
        """By address."""
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
    """Of a ``torch.optim.Optimizer``."""

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
        self.value.load_state_dict(copied(self._saved, None))  # it keeps tensors that it is given

    def sync(self, root: int = 0) -> None:
        broadcast_optimizer_state(self.value, root_rank=root)


class SamplerStateHandler(StateHandler):
    """Of an ``ElasticSampler``, whose state is the same on all ranks once they stand at the same step."""

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
    """What says itself what it is to keep."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


class StateDictHandler(StateHandler):
    """Of what has ``state_dict()`` and ``load_state_dict(...)``: schedulers of learning rates, scalers of gradients.
    The object stays, with what it refers to."""

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
    """Handler of a ``torch.amp.GradScaler``, whose ``state_dict()`` leaves out which optimizers it has unscaled since
    its last ``update()``. In the step that is done again it would refuse to unscale them a second time."""

    def restore(self) -> None:
        super().restore()
        self._begin_step()

    def sync(self, root: int = 0) -> None:
        super().sync(root)
        self._begin_step()

    def _begin_step(self) -> None:
        if getattr(self.value, "_scale", None) is not None:  # else it has not scaled yet, and refuses an update
            self.value.update(self.value.get_scale())


_registry: list[tuple[type, Callable[[Any], StateHandler]]] = [
    (ElasticSampler, SamplerStateHandler),
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler), ScalerStateHandler),  # PyTorch 2.1 has the second
    (HasState, StateDictHandler),
]


def get_handler_registry() -> list[tuple[type, Callable[[Any], StateHandler]]]:
    """(type, class of handlers) pairs: a value gets the first one whose type it is an instance of."""
    return _registry


def set_handler_registry(registry: list[tuple[type, Callable[[Any], StateHandler]]]) -> None:
    """In place of the one there is."""
    global _registry
    _registry = registry


def handler_for(name: str, value: Any) -> StateHandler | None:
    """None: an attribute as any other. Raises ValueError for what cannot be copied."""
    try:
        return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)
    except Exception as error:
        raise cannot_be_copied(name, value, error) from error


def check_references(others: Mapping[str, Any], handlers: Mapping[str, StateHandler]) -> None:
    """Raises ValueError for an attribute without a handler that refers to a value with one: a commit, and what other
    ranks get, would be a copy that refers to a copy."""
    for name, value in others.items():
        for kept, handler in handlers.items():
            if any(one is handler.value for one in _parts(value)):
                raise ValueError(
                    f"the state's attribute {name!r} ({type(value).__name__}) refers to its {kept!r}, and would "
                    "refer to a copy of it after a failure; accepted is what refers to no such value, or has "
                    "state_dict() and load_state_dict(). Keep it out of the state"
                )


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    return getattr(value, "__dict__", {}).values()


def takes_root(handler: StateHandler) -> bool:
    """Handlers of old programs have ``sync()``, which gives all ranks what rank 0 has."""
    return bool(inspect.signature(handler.sync).parameters)
