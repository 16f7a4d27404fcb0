"""Hooks on parameters that go when the one who wanted them is gone.

A hook lives as long as its parameter, and what it refers to lives as long: it must not keep an optimizer that nobody
has any more, nor that one's buckets in shared memory.
"""

import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable
from typing import Any

import torch

from horovod.torch import backward

# Compiled autograd (torch._dynamo) traces hooks into its graph. This one it must leave alone and call as it is; the
# decorator for that costs more than the rest of the hook, so it is used only there.
_is_traced: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", lambda: False)
_leave_alone: Any = getattr(torch, "_disable_dynamo", torch.compiler.disable)  # the former does not load torch._dynamo


@_leave_alone
def _not_traced(itself: Any, slot: Any) -> None:
    owner = itself()
    if owner is not None:
        with backward.unseen():
            owner.on_gradient(slot)


class Notes:
    """When gradients need no more than being noted."""

    __slots__ = ("number", "thread")

    def __init__(self) -> None:
        self.thread = 0  # the one in which they need no more; 0: in none
        self.number = 0  # the backward pass that is under way, or the last one


class Hooks:
    """The hooks of ``owner`` on the parameters of slots.

    They call ``owner.on_gradient(slot)`` when the gradient of ``slot.parameter`` has been accumulated and, if
    ``before`` is True, ``owner.before_gradient(slot)`` just before. In the thread that ``notes`` names, a gradient that
    its bucket expects is only noted there; ``owner.on_bucket(bucket)`` is called for the last one of a bucket.
    """

    def __init__(self, owner: Any, before: bool = False, notes: Notes | None = None) -> None:
        self._owner = weakref.ref(owner)
        self._notes = notes or Notes()
        self.before = before
        """Is ``before_gradient`` called?"""
        # Handles refer to parameters weakly, so this keeps nothing alive; nodes are let go of with the owner.
        self._handles: list[Any] = []
        weakref.finalize(owner, _remove, self._handles).atexit = False

    def add(self, slot: Any) -> None:
        """Sets ``slot.hook``, which has ``remove()``."""
        itself, notes = self._owner, self._notes

        def on_gradient(p: Any) -> None:
            if _is_traced():
                _not_traced(itself, slot)
                return
            # What most gradients need is done here: one call less for each, and calls are what hooks cost.
            if notes.thread == get_ident() and slot.only_noted and slot.seen != notes.number:
                grad = p.grad
                if grad is None:  # a hook of the program has taken it away
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
        """``owner.before_gradient`` is called from now on. ``slots``: all that there are."""
        if self.before:
            return
        self.before = True
        for slot in slots:
            if slot.hook is not None:
                slot.hook = _Both(slot.hook, self._add_before(slot))
                self._handles.append(slot.hook)

    def _add_before(self, slot: Any) -> Any:
        # On the node that accumulates: a hook on the parameter itself would be called by autograd.grad, too. Parameters
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
    """The handles of a hook after and one before."""

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
