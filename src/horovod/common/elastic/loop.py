"""Loop that runs an elastic training function, and reruns it after each failure or membership change.

When the function fails or is interrupted, the ranks form a new epoch (``reset``) and agree on whose state to keep
(``settle``). They run the reset callbacks (``on_reset``), copy the state to all ranks (``sync``), and call the function
again. The loop skips ``settle`` (``state.Keeping``) and ``sync`` if no rank needs them.

settle --> on_reset --> sync --> func --returns--> done
  ^                     ^          |
  |    first call ------'          |-- HorovodInternalError
  |                                '-- HostsUpdatedInterrupt
  '-------------- reset <--------------'
"""

import functools
import os
from collections.abc import Callable
from typing import Any

from horovod.common import launchers
from horovod.common.elastic.agreement import Outcome
from horovod.common.elastic.state import Keeping, State
from horovod.common.elastic.updates import notification_manager, sync_state
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.training_loop.steps import marks

_IN_VAIN = 3  # number of consecutive failures without progress after which the loop gives up


def run_fn(
    func: Callable[..., Any],
    reset: Callable[[], None],
    failures: Callable[[], int] = lambda: 0,
    convert_errors: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda turn: turn,
) -> Callable[..., Any]:
    """Wrap ``func`` in a loop that reruns it after each failure or membership change.

    The loop raises RuntimeError if the same ranks fail repeatedly and none is lost (``RepeatedFailures``). The launcher
    enforces all other limits, such as a minimum number of workers. The loop handles HorovodInternalError and
    HostsUpdatedInterrupt. It raises all other exceptions, including errors from ``reset``, for example if a worker's
    slot is gone.

    Args:
        func: The training function.
        reset: Function that leaves the job and joins the next epoch.
        failures: Function that returns the number of operations that have failed because ranks were lost. If ``func``
            returns normally after such a failure, ``func`` has swallowed the error, and the loop raises RuntimeError.
        convert_errors: Decorator that converts the framework's own error for a failed operation into
            HorovodInternalError. The loop applies it to ``func``, to callbacks and to the state's ``sync``.

    Returns:
        The wrapped function, to be called as ``run(state, *args, **kwargs)``.
    """

    @functools.wraps(func)
    def run(state: Any, *args: Any, **kwargs: Any) -> Any:
        notification_manager.init()
        notification_manager.register_listener(state)
        sync_state.begin()
        changed = failed = False
        # Value of the state's progress counter when ``func`` was last called.
        entered: int | None = None
        in_vain = RepeatedFailures()

        @convert_errors
        def turn() -> Any:
            nonlocal entered, failed
            outcome = _settle(state)
            if failed and marks.back is not None:
                again = None if outcome is None or outcome.restore else outcome.lost
                marks.back(0 if outcome is None else outcome.root, again)
            failed = False
            if changed:  # reset callbacks may call collectives, whose errors the loop must also handle
                state.on_reset()
                # Register the state. This also delivers host updates that have arrived since the membership change.
                notification_manager.register_listener(state)
            if sync_state.needed:
                if isinstance(state, State):
                    state.begin_step()
                state.sync()
                sync_state.record_sync()
                if isinstance(state, State):
                    state.on_resumed()
            entered = _progress_of(state)
            result = func(state, *args, **kwargs)
            if failures():
                raise RuntimeError(_swallowed(func, failures()))
            return result

        try:
            while True:
                try:
                    return turn()
                except HorovodInternalError as error:
                    sync_state.in_sync, failed = False, True
                    now = _progress_of(state)
                    further = 0 if entered is None or now == entered else now - entered
                    in_vain.failed(error, failures() > 0, further, sync_state.members)
                    _go_back(state, error, entered is not None)
                except HostsUpdatedInterrupt as interrupt:
                    sync_state.in_sync = sync_state.in_sync and interrupt.skip_sync
                in_vain.check(func)
                _join_again(reset)
                changed, entered = True, None
        finally:
            notification_manager.remove_listener(state)

    return run


class RepeatedFailures:
    """Detects failures that keep repeating without progress.

    It counts failures that occur with the same members, without a lost rank and without progress of the program. Such
    failures are caused by mistakes in the program, for example different shapes on different ranks.
    """

    def __init__(self) -> None:
        self._times = 0
        self._members: tuple[int, ...] = ()
        self._text = ""
        self._error: HorovodInternalError | None = None

    def failed(self, error: HorovodInternalError, lost: bool, further: int, members: tuple[int, ...]) -> None:
        """Count a failure of the training function.

        A program can commit right before the failing step. So a single commit or check for host updates between two
        identical errors does not count as progress.

        Args:
            error: Error that the training function raised.
            lost: True if lost ranks caused the failure.
            further: Number of commits and checks for host updates since the function was called.
            members: Members of the epoch.
        """
        stuck = further == 0 or (further == 1 and str(error) == self._text)
        self._times = 0 if lost else self._times + 1 if stuck and members == self._members else 1
        self._members, self._text = members, str(error)
        # Store the error only if needed, because its traceback keeps the step's tensors alive.
        self._error = error if self._times >= _IN_VAIN else None

    def check(self, func: Callable[..., Any]) -> None:
        """Raise RuntimeError if the failures would repeat forever.

        The RuntimeError is not chained to the failure. Otherwise the launcher would blame other ranks for this rank's
        exit.
        """
        if self._error is None:
            return
        raise RuntimeError(
            f"{_name_of(func)}, which was given to hvd.elastic.run, has failed {self._times} times one after the "
            f"other, though no rank was lost and the program came no further: {self._error}"
        ).with_traceback(self._error.__traceback__)


def _progress_of(state: Any) -> int:
    return getattr(state, "_progress", 0)


def _join_again(reset: Callable[[], None]) -> None:
    try:
        reset()
    except Exception as error:
        place = launchers.find(os.environ)
        if place is None or place.size < 2:  # under horovodrun, the launcher reports the reason for the failure
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
    return state.settle(sync_state.needed) if isinstance(state, Keeping) else None


def _go_back(state: Any, error: HorovodInternalError, entered: bool) -> None:
    """Restore or keep the state after a failure.

    Args:
        state: The elastic state.
        error: The failure.
        entered: True if the training function was called since the last ``sync``. If False, the state has not changed.
    """
    if not isinstance(state, Keeping):
        state.restore()
    elif entered:
        state.failed(error)
