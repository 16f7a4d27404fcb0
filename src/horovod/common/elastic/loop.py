"""Loop that calls an elastic program's function, and again after each failure or change of members.

settle --> on_reset --> sync --> func --returns--> done
  ^                     ^          |
  |    first call ------'          |-- HorovodInternalError
  |                                '-- HostsUpdatedInterrupt
  '-------------- reset <--------------'

``settle`` (``state.Keeping``) and ``sync`` are skipped if no rank needs them.
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

_IN_VAIN = 3  # number of consecutive failures without progress before giving up


def run_fn(
    func: Callable[..., Any],
    reset: Callable[[], None],
    failures: Callable[[], int] = lambda: 0,
    errors_as_ours: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda turn: turn,
) -> Callable[..., Any]:
    """Wrap ``func`` in a loop that calls it again after each failure or change of members.

    The result is called as ``run(state, *args, **kwargs)``.

    The loop raises RuntimeError if the same ranks fail repeatedly although none is lost (``RepeatedFailures``). Other
    reasons to give up are up to the launcher. Exceptions other than HorovodInternalError and HostsUpdatedInterrupt pass
    through. That includes errors of ``reset``, for example if a worker's slot is gone.

    Args:
        func: The training function.
        reset: Leaves the job and joins the next epoch.
        failures: Returns how many operations have failed because ranks were lost. If ``func`` returns normally after
            such a failure, it has swallowed the error, and the loop raises RuntimeError.
        errors_as_ours: Wraps a function to convert the framework's own error for a failed operation into
            HorovodInternalError. Applied to ``func``, to callbacks and to the state's ``sync``.
    """

    @functools.wraps(func)
    def run(state: Any, *args: Any, **kwargs: Any) -> Any:
        notification_manager.init()
        notification_manager.register_listener(state)
        together.begin()
        changed = failed = False
        entered: int | None = None  # commits and checks for host updates when ``func`` was last called
        in_vain = RepeatedFailures()

        @errors_as_ours
        def turn() -> Any:
            nonlocal entered, failed
            outcome = _settle(state)
            if failed and marks.back is not None:
                again = None if outcome is None or outcome.restore else outcome.lost
                marks.back(0 if outcome is None else outcome.root, again)
            failed = False
            if changed:  # reset callbacks may use collectives, which may fail
                state.on_reset()
                notification_manager.register_listener(state)  # also delivers updates received since
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


class RepeatedFailures:
    """Detector of failures that would repeat forever.

    It counts failures with the same members, no lost rank and no progress of the program. Mistakes in the program cause
    such failures, for example different shapes on different ranks.
    """

    def __init__(self) -> None:
        self._times = 0
        self._members: tuple[int, ...] = ()
        self._text = ""
        self._error: HorovodInternalError | None = None

    def failed(self, error: HorovodInternalError, lost: bool, further: int, members: tuple[int, ...]) -> None:
        """Count a failure of the program's function.

        A single commit or check before the same error does not count as progress, because a program may commit before
        the step that fails.

        Args:
            error: The failure.
            lost: True if the failure was caused by lost ranks.
            further: How often the program has committed or checked for host updates since it was called.
            members: Members of the epoch.
        """
        stuck = further == 0 or (further == 1 and str(error) == self._text)
        self._times = 0 if lost else self._times + 1 if stuck and members == self._members else 1
        self._members, self._text = members, str(error)
        # Keep the error only if needed, because its traceback keeps the step's objects alive.
        self._error = error if self._times >= _IN_VAIN else None

    def check(self, func: Callable[..., Any]) -> None:
        """Raise RuntimeError if retrying will not help.

        The failure is not set as the cause of the RuntimeError, so that other ranks are not blamed for this rank's end.
        """
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
        if place is None or place.size < 2:  # horovodrun started the job and reports the reason itself
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
    """Restore or keep the state after a failure.

    ``entered`` is True if the program's function was called since the last ``sync``. Otherwise the state has not
    changed.
    """
    if not isinstance(state, Keeping):
        state.restore()
    elif entered:
        state.failed(error)
