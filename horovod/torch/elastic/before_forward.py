"""What a forward pass changes besides activations, as it was before the first one of a step: so that a step that has
failed can be done again as if it had not begun.

That is the moving statistics of normalisation layers, and the generators of random numbers from which dropout draws.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch


class BeforeForward:
    """Of the models that are watched. Copies once a step, into the memory of the last copy."""

    def __init__(self, begun: Callable[[], None] = lambda: None) -> None:
        """``begun`` is called before the first forward pass of each step."""
        self._begun = begun
        self._hooks: dict[int, tuple[torch.nn.Module, Any]] = {}
        self._armed = True  # the next forward pass in training is the first of its step
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []  # (the model's, as it was)
        self._random: torch.Tensor | None = None
        self._random_of_devices: dict[int, torch.Tensor] = {}

    def watch(self, models: Sequence[torch.nn.Module]) -> None:
        """These from now on, and no others."""
        wanted = {id(model): model for model in models}
        for key in [key for key in self._hooks if key not in wanted]:
            self._hooks.pop(key)[1].remove()
        for key, model in wanted.items():
            if key not in self._hooks:
                self._hooks[key] = model, model.register_forward_pre_hook(_Hook(self))
        self.stepped()

    def stepped(self) -> None:
        """The step is over: what its forward passes have changed stays."""
        self._armed = True
        self._random = None

    def begins(self, model: torch.nn.Module) -> None:
        """A forward pass of one of the models."""
        if not self._armed or not model.training:
            return
        self._armed = False
        self._begun()
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
        """The step that has begun, if one has, is to be done again."""
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
    """In a model, and not in what is pickled or copied of it."""

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
    """Stands for a hook of another process or of another model."""

    def __call__(self, *_: Any) -> None:
        return None
