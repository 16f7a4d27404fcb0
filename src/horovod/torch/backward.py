"""Backward passes: hooks that report gradients, and detection of the end, or the failure, of a pass.

The first gradient that a pass produces for a distributed optimizer registers a callback with autograd. Autograd calls
it at the end of the pass, before ``backward()`` returns. A pass may run within another one: a re-entrant checkpoint
recomputes its layers and runs backward through them. The end of the inner pass is then not the end, so its callback is
registered again with the outer pass.

If a pass raises, autograd drops the callback without calling it. Its deletion is the sign of the failure.

A hook lives as long as its parameter, and so does everything it refers to. It must therefore not keep an unused
optimizer alive, nor that optimizer's buckets in shared memory. So hooks are removed when their owner is deleted.
"""

import contextlib
import functools
import sys
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

_queue = torch.autograd.Variable._execution_engine.queue_callback
# The node that this thread is running, if it is within a backward pass.
_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)
_local = threading.local()  # .current: a weak reference to this thread's pass

# Seconds to wait for one optimizer's readiness message before checking those of other optimizers in the same pass.
# Other ranks may have run the pass for only some of them, and reach the rest when they have received these.
_TURN_SECONDS = 0.01
TWO_THREADS = (
    "backward() must not run in two threads at once for the parameters of one optimizer; hold a lock around "
    "backward(), or give each thread's parameters an optimizer of their own"
)


class Reducer(Protocol):
    """Object that takes part in backward passes."""

    name: str

    def pass_ended(self) -> bool:
        """Record the end of a pass, and return True if a reduction must be completed now."""

    def pass_failed(self) -> None:
        """Record that ``backward()`` is raising an exception. Must not block."""

    def begin(self, *, alone: bool) -> None:
        """Submit everything that can be submitted, without blocking.

        ``alone`` is True if no other reducer submits gradients in this pass.
        """

    def answer(self, seconds: float) -> bool:
        """Submit the gradients that other ranks requested.

        Returns:
            bool: False if not all ranks have sent their requests within ``seconds``.
        """

    def finish(self) -> None:
        """Wait for the remaining operations."""

    def reset(self) -> None:
        """Discard all state after a failure."""


class Pass:
    """An outermost backward pass of one thread. Only autograd keeps a lasting reference to it."""

    def __init__(self) -> None:
        self.reducers: list[Reducer] = []
        self.over = False

    def end(self) -> None:
        """End the pass. Called by autograd."""
        node = _node()
        if node is not None:  # the node runs a nested pass, and that has now ended
            self._follow(node)
            return
        self.over = True
        _local.current = None
        complete(self.reducers)

    def _follow(self, node: Any) -> None:
        """Register ``end`` again with the pass that ``node`` belongs to.

        Autograd accepts no callbacks for that pass until it continues, so hooks on the following nodes do the
        registration.
        """
        handles: list[Any] = []

        def go_on(_: Any) -> None:
            for handle in handles:
                handle.remove()
            handles.clear()
            if not self.over:
                _queue(self.end)

        for following, _ in node.next_functions:
            if following is not None:
                handles.append(following.register_prehook(go_on))

    def __del__(self) -> None:
        if not self.over and not sys.is_finalizing():
            for reducer in self.reducers:
                reducer.pass_failed()


class Turn:
    """Order of the program's threads that run backward passes for the same optimizer.

    At its first gradient, a pass waits until no other thread's round is under way. It cannot wait for another thread's
    pass: that one may need a parameter whose gradient this pass has just produced, and autograd locks it until the hook
    returns. Autograd's own threads, one per device, work for any pass, so they count as threads of the pass.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while a pass begins, because autograd's threads begin it concurrently
        self._over = threading.Condition(self.lock)
        # The thread of the program whose pass is under way; 0 if none or unknown.
        self.thread = 0
        # The thread whose round is under way; 0 if none.
        self._round = 0
        self._waiting = 0

    def is_shared(self) -> bool:
        """Return True if a thread other than `thread` may work for the pass under way."""
        return self.thread == 0 or _is_autograds()

    def begin(self) -> int:
        """Begin a pass when no other thread's round is under way, and return this thread's id.

        The caller must hold `lock`. A round ends, at the latest, when its collectives fail.
        """
        me = threading.get_ident()
        self._waiting += 1
        try:
            self._over.wait_for(lambda: self._round in (0, me))
        finally:
            self._waiting -= 1
        if self.thread == 0 and not _is_autograds():
            self.thread = me
        return me

    def end(self, with_round: bool = False) -> None:
        """End the pass under way. ``with_round``: this thread completes a round before the next pass may begin."""
        if with_round:
            self._round = threading.get_ident()
        self.thread = 0

    def end_round(self) -> None:
        """End this thread's round, if there is one."""
        if self._round == threading.get_ident():
            self._round = 0
            if self._waiting:
                with self._over:
                    self._over.notify_all()


def _is_autograds() -> bool:
    """Return True in a thread of autograd, for which Python has only a dummy object."""
    return isinstance(threading.current_thread(), threading._DummyThread)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Return a context in which the end of a backward pass cannot be detected."""
    _local.unseen = True
    try:
        yield
    finally:
        _local.unseen = False


def without_end() -> None:
    """Stand in for the reference to a pass whose end cannot be detected."""
    return None


def join(reducer: Reducer) -> "weakref.ref[Pass] | None":
    """Add ``reducer`` to the pass under way in this thread, and return a reference to the pass.

    Returns None if the end of the pass cannot be detected, because autograd's graph is compiled.
    """
    if getattr(_local, "unseen", False):
        return None
    reference: weakref.ref[Pass] | None = getattr(_local, "current", None)
    current = reference() if reference is not None else None
    if current is None or current.over:
        current = Pass()
        try:
            _queue(current.end)
        except RuntimeError:  # not called by autograd's engine
            current.over = True
            return None
        reference = _local.current = weakref.ref(current)
    current.reducers.append(reducer)
    return reference


def complete(reducers: Iterable[Reducer]) -> None:
    """Complete the due reductions of all ``reducers``, then raise the first failure.

    Ranks may have run this pass for different optimizers. So this function never blocks on one optimizer's messages
    while it could answer another's. Only the order of calls in the program decides which rank waits for which.
    """
    due = sorted((r for r in reducers if r.pass_ended()), key=lambda r: r.name)
    if len(due) == 1:
        _complete_one(due[0])
        return
    failures: list[Exception] = []

    def attempt(reducer: Reducer, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:
            failures.append(error)
            with contextlib.suppress(Exception):
                reducer.reset()
            failed.append(reducer)
            return True

    failed: list[Reducer] = []
    for reducer in due:
        attempt(reducer, functools.partial(reducer.begin, alone=False))
    waiting = [r for r in due if r not in failed]
    while waiting:
        turn = -1.0 if len(waiting) == 1 else _TURN_SECONDS
        waiting = [r for r in waiting if not attempt(r, functools.partial(r.answer, turn))]
    for reducer in due:
        if reducer not in failed:
            attempt(reducer, reducer.finish)
    if failures:
        raise failures[0]


def _complete_one(reducer: Reducer) -> None:
    try:
        reducer.begin(alone=True)
        reducer.answer(-1.0)
        reducer.finish()
    except Exception:
        with contextlib.suppress(Exception):
            reducer.reset()
        raise


# Compiled autograd (torch._dynamo) traces hooks into its graph, but must call this one untraced. The decorator for that
# costs more than the rest of the hook, so it is used only while tracing.
_is_traced: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", lambda: False)
# torch._disable_dynamo does not import torch._dynamo, unlike torch.compiler.disable.
_leave_alone: Any = getattr(torch, "_disable_dynamo", torch.compiler.disable)


@_leave_alone
def _not_traced(itself: Any, slot: Any) -> None:
    owner = itself()
    if owner is not None:
        with unseen():
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
                bucket.arrived[place] = grad
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
