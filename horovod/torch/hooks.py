"""Hooks on parameters that go when the one who wanted them is gone.

A hook lives as long as its parameter, and what it refers to lives as long: it must not keep an optimizer that nobody
has any more, nor that one's buckets in shared memory.
"""

import weakref
from typing import Any


class Hooks:
    """The hooks of ``owner``, whose ``on_gradient(slot)`` they call when the gradient of ``slot.parameter`` has been
    accumulated."""

    def __init__(self, owner: Any) -> None:
        self._owner = weakref.ref(owner)
        # Handles refer to parameters weakly, so this keeps nothing alive.
        self._handles: list[Any] = []
        weakref.finalize(owner, _remove, self._handles).atexit = False

    def add(self, slot: Any) -> None:
        """Sets ``slot.hook``."""
        itself = self._owner

        def on_gradient(_: Any) -> None:
            owner = itself()
            if owner is not None:
                owner.on_gradient(slot)

        slot.hook = slot.parameter.register_post_accumulate_grad_hook(on_gradient)
        self._handles.append(slot.hook)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
