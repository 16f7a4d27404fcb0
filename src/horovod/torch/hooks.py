"""Hooks on parameters, which are removed when their owner is deleted.

A hook lives as long as its parameter, and so does everything it refers to. It must therefore not keep an unused
optimizer alive, nor that optimizer's buckets in shared memory.
"""

import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable
from typing import Any

import torch

from horovod.torch import backward

# Compiled autograd (torch._dynamo) traces hooks into its graph, but must call this one untraced. The decorator for that
# costs more than the rest of the hook, so it is used only while tracing.
_is_traced: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", lambda: False)
# torch._disable_dynamo does not import torch._dynamo, unlike torch.compiler.disable.
_leave_alone: Any = getattr(torch, "_disable_dynamo", torch.compiler.disable)


@_leave_alone
def _not_traced(itself: Any, slot: Any) -> None:
    owner = itself()
    if owner is not None:
        with backward.unseen():
            owner.on_gradient(slot)


class Notes:
    """State that tells hooks when a gradient only needs to be recorded."""

    __slots__ = ("number", "thread")

    def __init__(self) -> None:
        # The thread in which recording is enough; 0 for none.
        self.thread = 0
        # Number of the backward pass under way, or of the last one.
        self.number = 0


class Hooks:
    """Hooks of ``owner`` on the parameters of slots.

    They call ``owner.on_gradient(slot)`` when the gradient of ``slot.parameter`` has been accumulated and, if
    ``before`` is True, ``owner.before_gradient(slot)`` just before. In the thread named by ``notes``, a gradient that
    its bucket expects is only recorded, and the last one of a bucket causes a call of ``owner.on_bucket(bucket)``.
    """

    def __init__(self, owner: Any, before: bool = False, notes: Notes | None = None) -> None:
        self._owner = weakref.ref(owner)
        self._notes = notes or Notes()
        self.before = before
        """True if ``before_gradient`` is called."""
        # Handles refer to parameters weakly, so this list keeps nothing alive. Nodes are released with the owner.
        self._handles: list[Any] = []
        weakref.finalize(owner, _remove, self._handles).atexit = False

    def add(self, slot: Any) -> None:
        """Set ``slot.hook``, which has ``remove()``."""
        itself, notes = self._owner, self._notes

        def on_gradient(p: Any) -> None:
            if _is_traced():
                _not_traced(itself, slot)
                return
            # Handle most gradients inline: this saves one call per gradient, and calls are the cost of a hook.
            if notes.thread == get_ident() and slot.only_noted and slot.seen != notes.number:
                grad = p.grad
                if grad is None:  # a hook of the program has removed it
                    return
                slot.seen = notes.number
                bucket, place = slot.bucket, slot.place
                bucket.came[place] = grad
                bucket.versions[place] = grad._version
                if bucket.streams is not None:
                    bucket.streams.note()
                bucket.waiting_for -= 1
                if bucket.waiting_for:
                    return
                owner = itself()
                if owner is not None:
                    owner.on_bucket(bucket)
                return
            owner = itself()
            if owner is not None:
                owner.on_gradient(slot)

        slot.hook = slot.parameter.register_post_accumulate_grad_hook(on_gradient)
        self._handles.append(slot.hook)
        if self.before:
            slot.hook = _Both(slot.hook, self._add_before(slot))
            self._handles.append(slot.hook)

    def also_before(self, slots: Iterable[Any]) -> None:
        """Call ``owner.before_gradient`` from now on. ``slots`` must be all existing ones."""
        if self.before:
            return
        self.before = True
        for slot in slots:
            if slot.hook is not None:
                slot.hook = _Both(slot.hook, self._add_before(slot))
                self._handles.append(slot.hook)

    def _add_before(self, slot: Any) -> Any:
        # Hook on the node that accumulates: autograd.grad would also call a hook on the parameter itself. Parameters
        # refer to their nodes weakly.
        itself = self._owner
        with torch.enable_grad():
            view = slot.parameter.view_as(slot.parameter)
        node = view.grad_fn.next_functions[0][0]

        def before_gradient(_: Any) -> None:
            owner = itself()
            if owner is not None:
                owner.before_gradient(slot)

        return node, node.register_prehook(before_gradient)


class _Both:
    """Handles of a hook after and a hook before the accumulation."""

    def __init__(self, after: Any, before: tuple[Any, Any]) -> None:
        self._after = after
        self._node, self._before = before

    def remove(self) -> None:
        self._after.remove()
        self._before.remove()
        self._node = None


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
