"""Snapshot of the state that forward passes change, so that a failed step can be repeated.

This state consists of the models' buffers, such as running statistics of normalization layers, and of the random number
generators that dropout uses.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch


class BeforeForward:
    """Snapshot of the watched models' buffers and the random state, taken once per step. Reuses its memory."""

    def __init__(self, begun: Callable[[], None] = lambda: None) -> None:
        """Create the snapshot. ``begun`` is called before the first forward pass of each step."""
        self._begun = begun
        self._hooks: dict[int, tuple[torch.nn.Module, Any]] = {}
        # True if the next forward pass in training is the first of its step.
        self._armed = True
        # Pairs of (buffer of a model, copy from before the step).
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._random: torch.Tensor | None = None
        self._random_of_devices: dict[int, torch.Tensor] = {}

    def watch(self, models: Sequence[torch.nn.Module]) -> None:
        """Replace the watched models by ``models``."""
        wanted = {id(model): model for model in models}
        for key in [key for key in self._hooks if key not in wanted]:
            self._hooks.pop(key)[1].remove()
        for key, model in wanted.items():
            if key not in self._hooks:
                self._hooks[key] = model, model.register_forward_pre_hook(_Hook(self))
        self.stepped()

    def stepped(self) -> None:
        """End the step. The changes that its forward passes have made remain."""
        self._armed = True
        self._random = None

    def begins(self, model: torch.nn.Module) -> None:
        """Take the snapshot if this is the first forward pass of a step. Called before each forward pass."""
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
        """Restore the snapshot if a step has begun, so that the step can be repeated."""
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
    """Forward pre-hook on a model. Copies and pickles of the model contain a placeholder instead."""

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
    """Placeholder for the hook in a copy or pickle of a model. Calling it does nothing."""

    def __call__(self, *_: Any) -> None:
        return None
