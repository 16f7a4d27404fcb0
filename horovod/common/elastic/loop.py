"""The loop around an elastic program's function: call it, and after a failure or a change of members call it again.

settle --> on_reset --> sync --> func --returns--> done
  ^                     ^          |
  |         at first ---'          |-- HorovodInternalError
  |                                '-- HostsUpdatedInterrupt
  '-------------- reset <--------------'

``settle`` (``state.Keeping``) and ``sync`` are left out where nobody needs them.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

from horovod.common import launchers
from horovod.common.elastic.agreement import Outcome
from horovod.common.elastic.state import Keeping, State
from horovod.common.elastic.updates import notification_manager, together
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.steps import marks

_IN_VAIN = 3  # failures


def run_fn(
    func: Callable[..., Any],
    reset: Callable[[], None],
    failures: Callable[[], int] = lambda: 0,
    errors_as_ours: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda turn: turn,
) -> Callable[..., Any]:
    """``func(state, *args, **kwargs)``, called again with the new members after each change of them. ``reset`` leaves
    the job and joins the next epoch. ``failures``: how many operations have failed since, because ranks were lost: a
    function that returns all the same has kept the error to itself, and RuntimeError says so. ``errors_as_ours``: makes
    a function of one that raises HorovodInternalError where the framework has another error for a failed operation, in
    ``func`` and wherever else the framework carries one: callbacks, the state's ``sync``.

    Gives up, by RuntimeError, where the same ranks fail again and again though none is lost (``InVain``); all else is
    the launcher's part. Exceptions other than HorovodInternalError and HostsUpdatedInterrupt, those of ``reset``
    included (a worker whose slot is gone), pass through.
    """

    @functools.wraps(func)
    def run(state: Any, *args: Any, **kwargs: Any) -> Any:
        notification_manager.init()
        notification_manager.register_listener(state)
        together.begin()
        changed = failed = False
        entered: int | None = None  # how far the program had come then
        in_vain = InVain()

        @errors_as_ours
        def turn() -> Any:
            nonlocal entered, failed
            outcome = _settle(state)
            if failed and marks.back is not None:
                again = None if outcome is None or outcome.restore else outcome.lost
                marks.back(0 if outcome is None else outcome.root, again)
            failed = False
            if changed:  # its callbacks may use collectives, and fail as they do
                state.on_reset()
                notification_manager.register_listener(state)  # for what has come since
            if together.needed:
                if isinstance(state, State):
                    state.begin_step()
                state.sync()
                together.done()
                if isinstance(state, State):
                    state.on_resumed()
            entered = _come_further(state)
            result = func(state, *args, **kwargs)
            if failures():
                raise RuntimeError(_swallowed(func, failures()))
            return result

        try:
            while True:
                try:
                    return turn()
                except HorovodInternalError as error:
                    together.in_sync, failed = False, True
                    now = _come_further(state)
                    further = 0 if entered is None or now == entered else now - entered
                    in_vain.failed(error, failures() > 0, further, together.members)
                    _go_back(state, error, entered is not None)
                except HostsUpdatedInterrupt as interrupt:
                    together.in_sync = together.in_sync and interrupt.skip_sync
                in_vain.check(func)
                _join_again(reset)
                changed, entered = True, None
        finally:
            notification_manager.remove_listener(state)

    return run


class InVain:
    """Failures that come again whatever is done: of the same members, though no rank was lost, and before the program
    has come any further. A mistake of the program does that, ranks with different shapes for one. Pure."""

    def __init__(self) -> None:
        self._times = 0
        self._members: tuple[int, ...] = ()
        self._text = ""
        self._error: HorovodInternalError | None = None

    def failed(self, error: HorovodInternalError, lost: bool, further: int, members: tuple[int, ...]) -> None:
        """``lost``: ranks were; ``further``: how often the program has committed, or asked for changed hosts, since it
        was called. Once, before the same error, is no progress: a loop that counts its steps when they begin does its
        last step again, and commits that."""
        stuck = further == 0 or (further == 1 and str(error) == self._text)
        self._times = 0 if lost else self._times + 1 if stuck and members == self._members else 1
        self._members, self._text = members, str(error)
        self._error = error if self._times >= _IN_VAIN else None  # its traceback holds all that the step has made

    def check(self, func: Callable[..., Any]) -> None:
        """Raises RuntimeError if it is no use. Not from the error itself: this rank does not end because of others."""
        if self._error is None:
            return
        raise RuntimeError(
            f"{_name_of(func)}, which was given to hvd.elastic.run, has failed {self._times} times one after the "
            f"other, though no rank was lost and the program came no further: {self._error}"
        ).with_traceback(self._error.__traceback__)


def _come_further(state: Any) -> int:
    return getattr(state, "_come_further", 0)


def _join_again(reset: Callable[[], None]) -> None:
    try:
        reset()
    except Exception as error:
        place = launchers.find(os.environ)
        if place is None or place.size < 2:  # of a job of our own, whose launcher says what there is to say
            raise
        raise ValueError(
            f"hvd.elastic.run goes on after a failure in jobs of horovodrun --min-np N only: {place.launcher} has "
            f"started this one, and no process of it can be left behind or started later ({error})"
        ) from error


def _swallowed(func: Callable[..., Any], failures: int) -> str:
    return (
        f"{_name_of(func)}, which was given to hvd.elastic.run, has returned though ranks were lost ({failures} "
        "operations failed): it has caught HorovodInternalError, which it must let pass, so that it can be called again"
    )


def _name_of(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", "the function")


def _settle(state: Any) -> Outcome | None:
    return state.settle(together.needed) if isinstance(state, Keeping) else None


def _go_back(state: Any, error: HorovodInternalError, entered: bool) -> None:
    """``entered``: the program has gone on since the states were brought together last; else it holds what it held."""
    if not isinstance(state, Keeping):
        state.restore()
    elif entered:
        state.failed(error)
