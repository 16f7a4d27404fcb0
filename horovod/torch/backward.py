"""When a backward pass ends, and whether it has failed.

The first gradient that a pass makes for a distributed optimizer asks autograd to call back when the pass is over, which
is before ``backward()`` returns. A pass may run within another one (a re-entrant checkpoint computes its layers again
and goes backward through them): the end of the inner one is not the end, so it hands on to the outer one.

A pass that raises calls nobody. But then autograd drops the callback, which is how we learn of it.
"""

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

_queue = torch.autograd.Variable._execution_engine.queue_callback
# The node that this thread is running, if it is within a backward pass.
_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)
_local = threading.local()  # .current: a weak reference to this thread's pass

# How long to wait for one optimizer's vote before looking at those of the others in the same pass: other ranks may have
# made a pass for some of them only and come to the rest when they have got these.
_TURN_SECONDS = 0.01
TWO_THREADS = (
    "backward() must not run in two threads at once for the parameters of one optimizer; hold a lock around "
    "backward(), or give each thread's parameters an optimizer of their own"
)


class Reducer(Protocol):
    """What takes part in passes."""

    name: str

    def pass_ended(self) -> bool:
        """Is a reduction to be completed now?"""

    def pass_failed(self) -> None:
        """``backward()`` is raising an exception. Must not block."""

    def begin(self, *, alone: bool) -> None:
        """Submits all that can be submitted, without blocking. ``alone``: no other one does so in this pass."""

    def answer(self, seconds: float) -> bool:
        """Submits what other ranks asked for; False when they have not all asked within ``seconds``."""

    def finish(self) -> None:
        """Waits for the rest."""

    def reset(self) -> None:
        """Forgets everything, after a failure."""


class Pass:
    """An outermost backward pass under way in one thread. Autograd has the only lasting reference to it."""

    def __init__(self) -> None:
        self.reducers: list[Reducer] = []
        self.over = False

    def end(self) -> None:
        """Called by autograd at the end of a pass."""
        node = _node()
        if node is not None:  # which is running a pass of its own, that has ended
            self._follow(node)
            return
        self.over = True
        _local.current = None
        complete(self.reducers)

    def _follow(self, node: Any) -> None:
        """Asks to be called back at the end of the pass that ``node`` belongs to, once it has gone on: until then
        autograd takes no callbacks for that one."""
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
    """Whose turn it is to go backward, where several of the program's threads do so for the same optimizer.

    A pass waits at its first gradient until another thread's round is over. It cannot wait for another thread's pass:
    that one may need a parameter whose gradient this one has just made, and autograd keeps others out until the hook
    has returned. Autograd's own threads, one for each device, work for any pass, so they count as the pass's own.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while a pass begins, which autograd's threads do together
        self._over = threading.Condition(self.lock)
        self.thread = 0  # the program's thread whose pass is under way; 0: none, or not known
        self._round = 0  # the thread whose round is under way; 0: none
        self._waiting = 0

    def is_shared(self) -> bool:
        """Return True if a thread other than `thread` may work for the pass under way."""
        return self.thread == 0 or _is_autograds()

    def begin(self) -> int:
        """Begin a pass when no other thread's round is under way, and return this thread's number.

        To be called with `lock` held. A round ends, at the latest, when its collectives fail.
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
        """End the pass under way. ``with_round``: this thread completes a round before the next pass can begin."""
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
    """Return True in a thread of autograd: Python knows it only by a stand-in."""
    return isinstance(threading.current_thread(), threading._DummyThread)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """In this context passes have no end that can be seen."""
    _local.unseen = True
    try:
        yield
    finally:
        _local.unseen = False


def without_end() -> None:
    """Stand in for the reference to a pass whose end will not be seen."""
    return None


def join(reducer: Reducer) -> "weakref.ref[Pass] | None":
    """Makes ``reducer`` part of the pass that is under way in this thread. None where the pass's end cannot be seen:
    autograd's graph is compiled."""
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
    """Completes the reductions of all ``reducers`` that are due; then raises the first failure.

    Ranks may have made this pass for different optimizers. So nothing here waits for one optimizer's votes while
    another one's could be answered, and the program's order of calls alone decides who waits for whom.
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
