"""Gradient hooks for backward passes, and detection of the end or failure of a pass.

The first gradient that a pass produces for a distributed optimizer registers a callback with autograd. Autograd calls
it at the end of the pass, before ``backward()`` returns. A pass can run within another one: a re-entrant checkpoint
recomputes its layers and runs backward through them. When the inner pass ends, the outer pass continues, so the
callback is registered again with the outer pass.

If a pass raises an exception, autograd deletes the callback without calling it. This deletion reports the failure.

A hook lives as long as its parameter, and keeps alive what it refers to. An unused optimizer and its buckets in shared
memory must not be kept alive. So hooks refer to the optimizer's reducer weakly, and are removed when it is deleted.
"""

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

from horovod._core import GradientHook, HookState
from horovod.common.frontends import TORCH as frontend

_queue = torch.autograd.Variable._execution_engine.queue_callback
# Function that returns the autograd node running in this thread, or None outside of a backward pass.
_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)
# Thread-local storage. Its attribute ``current`` is a weak reference to the thread's backward pass.
_local = threading.local()

# Seconds to wait for one optimizer's readiness messages before checking the other optimizers of the backward pass.
# Waiting longer could cause a deadlock, because another rank may wait for a different optimizer first.
_TURN_SECONDS = 0.01
TWO_THREADS = (
    "backward() must not run in two threads at once for the parameters of one optimizer; hold a lock around "
    "backward(), or give each thread's parameters an optimizer of their own"
)


class Reducer(Protocol):
    """Interface of an object that reduces the gradients of backward passes."""

    name: str

    def pass_ended(self) -> bool:
        """Record the end of a backward pass, and return True if the reduction must now be completed."""

    def pass_failed(self) -> None:
        """Record that ``backward()`` is about to raise an exception. Must not block."""

    def begin(self, *, sole_reducer: bool) -> None:
        """Submit all of this rank's gradients and its readiness message without blocking.

        ``sole_reducer`` is True if no other reducer submits gradients in this pass.
        """

    def submit_missing(self, seconds: float) -> bool:
        """Submit zeros for gradients that exist only on other ranks.

        Returns:
            bool: False if not all readiness messages have arrived within ``seconds``.
        """

    def finish(self) -> None:
        """Wait for the remaining operations of the current reduction round."""

    def reset(self) -> None:
        """Discard the state of the current reduction round after a failure."""


class PassState:
    """Base class of reducers, which tracks the current backward pass and reports its failure."""

    _job: Any
    """Job in which the reducer's state was created."""
    _pass: Any = None
    """Reference to the backward pass under way, or None."""
    _failed = False
    """True if a pass since the last step raised an exception."""
    _recovering = False
    """True while such a failure is reported."""

    def _is_due(self) -> bool:
        """Return True if enough backward passes have ended to start a reduction round."""
        raise NotImplementedError

    def _round(self) -> Any:
        raise NotImplementedError

    def reset(self) -> None:
        raise NotImplementedError

    def recover(self) -> None:
        """Report this rank's failed backward pass to the other ranks."""
        if not self._failed or not self._is_due() or self._recovering:
            return
        # Prevent endless recursion: the round started below waits for operations, and each wait calls this method
        # again.
        self._recovering = True
        try:
            if self._job is frontend.job:
                with contextlib.suppress(Exception):
                    self._round()
            self.reset()
        finally:
            self._recovering = False

    def _leave_pass(self) -> None:
        """Leave the current backward pass, so that its end does not complete a reduction round of this reducer."""
        current = self._pass() if self._pass is not None else None
        if current is not None and self in current.reducers:
            current.reducers.remove(self)
        self._end_pass()

    def _end_pass(self, with_round: bool = False) -> None:
        raise NotImplementedError


class Pass:
    """Outermost backward pass of one thread.

    Only autograd keeps this object alive, so it is deleted if the pass fails.
    """

    def __init__(self) -> None:
        self.reducers: list[Reducer] = []
        self.ended = False

    def end(self) -> None:
        """End the backward pass. Autograd calls this function."""
        node = _node()
        if node is not None:
            # The backward pass that just ended was nested: it ran within this node of another pass.
            self._follow(node)
            return
        self.ended = True
        _local.current = None
        complete(self.reducers)

    def _follow(self, node: Any) -> None:
        """Register the end-of-pass callback again, this time for the outer backward pass that contains ``node``.

        Autograd accepts a callback for a pass only while the pass runs one of its nodes. The callback is therefore
        registered by temporary hooks on the nodes that run next.
        """
        handles: list[Any] = []

        def go_on(_: Any) -> None:
            for handle in handles:
                handle.remove()
            handles.clear()
            if not self.ended:
                _queue(self.end)

        for following, _ in node.next_functions:
            if following is not None:
                handles.append(following.register_prehook(go_on))

    def __del__(self) -> None:
        if not self.ended and not sys.is_finalizing():
            for reducer in self.reducers:
                reducer.pass_failed()


class Turn:
    """Coordinator of threads that run backward passes for the same optimizer.

    A pass waits at its first gradient while another thread runs a reduction round. It cannot wait until another
    thread's pass has ended: that pass may need a parameter whose gradient this pass has just produced, and autograd
    locks the parameter until the hook returns. Autograd has one separate thread per device. These threads work for any
    pass, so they are treated as threads of the pass in progress.
    """

    def __init__(self) -> None:
        # Lock held while a pass begins, because autograd's threads can call begin() concurrently.
        self.lock = threading.RLock()
        self._round_ended = threading.Condition(self.lock)
        # Id of the user's thread that called the current backward pass, or 0 if no pass is running or the thread is
        # unknown.
        self.thread = 0
        # Id of the thread that runs a reduction round, or 0 if none does.
        self._round = 0
        self._waiting = 0

    def is_shared(self) -> bool:
        """Return True if the current backward pass can run on several threads."""
        return self.thread == 0 or _is_autograds()

    def begin(self) -> int:
        """Wait until no other thread runs a reduction round, then begin a backward pass.

        The caller must hold `lock`. The wait ends even if a rank is lost, because the round's collectives then fail.

        Returns:
            Id of this thread.
        """
        me = threading.get_ident()
        self._waiting += 1
        try:
            self._round_ended.wait_for(lambda: self._round in (0, me))
        finally:
            self._waiting -= 1
        if self.thread == 0 and not _is_autograds():
            self.thread = me
        return me

    def end(self, with_round: bool = False) -> None:
        """End the current backward pass.

        If ``with_round`` is True, this thread then runs a reduction round, and the next pass begins only after this
        thread has called ``end_round``.
        """
        if with_round:
            self._round = threading.get_ident()
        self.thread = 0

    def end_round(self) -> None:
        """End this thread's reduction round, if this thread is running one."""
        if self._round == threading.get_ident():
            self._round = 0
            if self._waiting:
                with self._round_ended:
                    self._round_ended.notify_all()


def _is_autograds() -> bool:
    """Return True if this is one of autograd's threads, which Python represents by a dummy object."""
    return isinstance(threading.current_thread(), threading._DummyThread)


@contextlib.contextmanager
def compiled_pass() -> Iterator[None]:
    """Return a context manager for compiled backward passes, whose end cannot be detected."""
    _local.compiled_pass = True
    try:
        yield
    finally:
        _local.compiled_pass = False


def no_pass() -> None:
    """Stand-in for a weak reference to a backward pass whose end cannot be detected. It returns None."""
    return None


def join(reducer: Reducer) -> "weakref.ref[Pass] | None":
    """Register a reducer with this thread's current backward pass.

    Returns:
        Reference to the pass, or None if autograd's graph is compiled, because the end of the pass cannot be detected
            then.
    """
    if getattr(_local, "compiled_pass", False):
        return None
    reference: weakref.ref[Pass] | None = getattr(_local, "current", None)
    current = reference() if reference is not None else None
    if current is None or current.ended:
        current = Pass()
        try:
            _queue(current.end)
        except RuntimeError:
            # Autograd rejects the callback, because its engine is not running a backward pass in this thread.
            current.ended = True
            return None
        reference = _local.current = weakref.ref(current)
    current.reducers.append(reducer)
    return reference


def complete(reducers: Iterable[Reducer]) -> None:
    """Complete the reductions that are due in all reducers, then raise the first error.

    Ranks may have run this pass for different optimizers. Two ranks that each waited for a different optimizer would
    deadlock. Therefore, this function never blocks on one optimizer's messages while it could answer those of another.
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
        attempt(reducer, functools.partial(reducer.begin, sole_reducer=False))
    waiting = [r for r in due if r not in failed]
    while waiting:
        turn = -1.0 if len(waiting) == 1 else _TURN_SECONDS
        waiting = [r for r in waiting if not attempt(r, functools.partial(r.submit_missing, turn))]
    for reducer in due:
        if reducer not in failed:
            attempt(reducer, reducer.finish)
    if failures:
        raise failures[0]


def _complete_one(reducer: Reducer) -> None:
    try:
        reducer.begin(sole_reducer=True)
        reducer.submit_missing(-1.0)
        reducer.finish()
    except Exception:
        with contextlib.suppress(Exception):
            reducer.reset()
        raise


# Compiled autograd (torch._dynamo) traces hooks into its graph, but this hook must run untraced. Apply the decorator
# that prevents tracing only while tracing, because the decorator costs more than the rest of the hook.
_is_traced: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", lambda: False)
# Prefer torch._disable_dynamo, because torch.compiler.disable would import torch._dynamo.
_untraced: Any = getattr(torch, "_disable_dynamo", torch.compiler.disable)


@_untraced
def _not_traced(owner: Any, slot: Any) -> None:
    with compiled_pass():
        owner.on_gradient(slot)


class Hooks:
    """Hooks on an optimizer's parameters, which call methods of ``owner``.

    When the gradient of ``slot.parameter`` has been accumulated, a hook calls ``owner.on_gradient(slot)``. If
    ``before_accumulation`` is True, it calls ``owner.before_gradient(slot)`` just before the accumulation. If the slot
    is a ``GradientHook``, autograd calls the slot itself. In the thread ``state.thread``, this native hook only records
    a gradient that belongs to a bucket, and calls ``owner.on_bucket(bucket)`` once the bucket is complete.
    """

    def __init__(self, owner: Any, before_accumulation: bool = False, state: HookState | None = None) -> None:
        self._owner = itself = weakref.ref(owner)
        self._state = state or HookState()

        def on_gradient(slot: Any, _: Any = None) -> None:
            if (owner := itself()) is not None:
                _not_traced(owner, slot) if _is_traced() else owner.on_gradient(slot)

        def on_bucket(bucket: Any) -> None:
            if (owner := itself()) is not None:
                owner.on_bucket(bucket)

        self._state.on_gradient, self._state.on_bucket = on_gradient, on_bucket
        self.before_accumulation = before_accumulation
        """True if hooks also call ``owner.before_gradient``."""
        # Hook handles refer to parameters weakly, so this list does not keep parameters alive. It does keep autograd
        # nodes alive until the owner is deleted.
        self._handles: list[Any] = []
        weakref.finalize(owner, _remove, self._handles).atexit = False

    def add(self, slot: Any) -> None:
        """Register the gradient hook of one parameter, and store the hook's handle in ``slot.hook``."""
        hook = slot
        if isinstance(slot, GradientHook):
            slot.state = self._state
        else:
            hook = functools.partial(self._state.on_gradient, slot)
        slot.hook = slot.parameter.register_post_accumulate_grad_hook(hook)
        self._handles.append(slot.hook)
        if self.before_accumulation:
            slot.hook = _Both(slot.hook, self._add_before(slot))
            self._handles.append(slot.hook)

    def remove(self) -> None:
        """Remove all hooks from the parameters."""
        _remove(self._handles)

    def add_before_accumulation(self, slots: Iterable[Any]) -> None:
        """From now on, also call ``owner.before_gradient`` before autograd adds to a gradient.

        ``slots`` must contain all parameters that have hooks.
        """
        if self.before_accumulation:
            return
        self.before_accumulation = True
        for slot in slots:
            if slot.hook is not None:
                slot.hook = _Both(slot.hook, self._add_before(slot))
                self._handles.append(slot.hook)

    def _add_before(self, slot: Any) -> Any:
        # Register the hook on the node that accumulates the gradient, because autograd.grad would also call a hook on
        # the parameter. Parameters refer to their nodes weakly, so the caller keeps the node alive.
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
    """Handle that removes the pre- and post-accumulation hooks of a gradient."""

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
