"""Event loop of the launcher, which waits for descriptors, signals and deadlines, shows output, and applies the policy.

A `WatchedAttempt` runs the processes, either through Horovod's agents (`job.attempt`) or through another launcher
(`external_launchers.foreign_job`).
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from horovod.runner.base.linux import WARNING, SignalQueue
from horovod.runner.job.policy import Action, Late, Launch, Phase, Policy, Stop
from horovod.runner.output.display import Screen
from horovod.runner.output.rank_files import RankFileError

_LONGEST = 3600.0  # Longest single wait in seconds, because poll() accepts at most about 24 days

QUEUE_LIMIT = 4 << 20  # Maximum bytes of output that may be queued before the launcher stops reading more


class WatchedAttempt(Protocol):
    """Interface to a job's processes, from their start to their exit. No method blocks."""

    def start(self) -> None:
        """Start the attempt. The event loop calls this method first, and only once."""

    @property
    def ended(self) -> bool:
        """True if no process of the attempt is left."""

    def events(self, listening: bool) -> dict[int, int]:
        """Return the file descriptors to poll, with their poll events.

        If `listening` is False, omit the descriptors that deliver output.
        """

    def serve(self, ready: set[int], listening: bool) -> None:
        """Transfer data from and to the descriptors that are ready."""

    def next_time(self) -> float | None:
        """Return the next time (monotonic, s) at which the caller must call `tick`, or None if nothing is scheduled."""

    def tick(self, now: float, listening: bool) -> None:
        """Handle deadlines that have passed."""

    def launch(self) -> None:
        """Start the processes. The loop calls this method once all hosts are connected."""

    def stop(self, grace: float, first: int = 0) -> None:
        """Send SIGTERM to all processes, and SIGKILL after `grace` seconds. See `policy.Stop` for the arguments."""

    def suspend(self) -> None:
        """Suspend the launcher after Ctrl-Z."""

    def pass_on(self, number: int) -> None:
        """Send a warning signal to all processes that handle it, because the job will end soon."""

    def doubtful(self, now: float) -> bool:
        """Return True if a host might be lost and this would explain the failures seen so far."""

    def late(self) -> str:
        """Return a message with the hosts or ranks that did not start within the start timeout."""

    def close(self) -> None:
        """Stop the remaining processes."""


AttemptType = TypeVar("AttemptType", bound=WatchedAttempt)


def wait_for(events: Mapping[int, int], until: float | None) -> set[int]:
    """Wait for events, and return the descriptors that are ready.

    Args:
        events: Descriptors and their poll events.
        until: Time limit (monotonic, s), or None for no limit. If there is a limit, the call returns after an hour at
            the latest.
    """
    poll = select.poll()
    for fd, event in events.items():
        poll.register(fd, event)
    timeout = None if until is None else min(max(0.0, until - time.monotonic()), _LONGEST) * 1000 + 1
    return {fd for fd, _ in poll.poll(timeout)}


class Watch:
    """Event loop that runs one attempt.

    Attributes:
        received: Signals that have ended the job.
        troubles: Error messages about hosts, agents or output, but not about ranks.
        size: Number of processes, for messages.
    """

    def __init__(self, screen: Screen, policy: Policy, signals: SignalQueue | None, size: int) -> None:
        self.screen = screen
        self.policy = policy
        self.received: list[int] = []
        self.troubles: list[str] = []
        self._signals = signals
        self.size = size
        self._attempt: WatchedAttempt | None = None
        self._readers = True

    def run_to_end(self, make: Callable[[Watch], AttemptType]) -> AttemptType:
        """Create an attempt, run it, and return it after closing it and the screen."""
        try:
            attempt = make(self)
            try:
                self.run(attempt)
            finally:
                attempt.close()
        finally:
            try:
                self.screen.close()
            except RankFileError as error:
                self.troubles.append(str(error))
        return attempt

    def run(self, attempt: WatchedAttempt) -> None:
        """Run the attempt until all its processes have exited or been abandoned."""
        self._attempt = attempt
        attempt.start()
        try:
            self._loop(attempt)
        # The calling program's own SIGINT handler raised KeyboardInterrupt. Stop the ranks, and wait for them to exit.
        except KeyboardInterrupt:
            self.interrupt()
            self._loop(attempt)
            raise

    def _loop(self, attempt: WatchedAttempt) -> None:
        while not self._over(attempt):
            self._wait(attempt)
            self._tick(attempt)

    def fail(self, *troubles: str) -> None:
        """Stop the job because of failures of hosts, agents or output. The messages are shown at the end."""
        self.troubles += troubles
        self._do(self.policy.trouble(time.monotonic()))

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Stop the job because the user sent a signal."""
        self._do(self.policy.interrupted(time.monotonic(), number))

    def connected(self) -> None:
        """Start the processes, because all hosts are connected now."""
        self._do(self.policy.connected(time.monotonic()))

    def _do(self, actions: list[Action]) -> None:
        assert self._attempt is not None
        for action in actions:
            if isinstance(action, Launch):
                self._attempt.launch()
            elif isinstance(action, Stop):
                self._attempt.stop(action.grace, action.first)
            elif isinstance(action, Late):
                self.troubles.append(self._attempt.late())

    def _listening(self) -> bool:
        """Return True if the launcher reads the output of the processes.

        It stops reading while its own output is blocked.
        """
        return self.screen.queue.pending < QUEUE_LIMIT or bool(self.received)

    def _wait(self, attempt: WatchedAttempt) -> None:
        listening = self._listening()
        if not listening:
            self.policy.reader_is_slow(time.monotonic())
        queue = self.screen.queue
        events = attempt.events(listening)
        if self._signals is not None:
            events[self._signals.fd] = select.POLLIN
        output = queue.waiting_for()
        if output is not None:
            events[output] = events.get(output, 0) | select.POLLOUT
        times = (self.policy.next_time(), attempt.next_time(), self.screen.display.next_due())
        ready = wait_for(events, min((at for at in times if at is not None), default=None))
        self._take_signals()
        attempt.serve(ready, listening)
        queue.write()
        if queue.broken and self._readers:
            self._readers = False  # Report a failure to write to stdout or stderr only once.
            if not self.policy.stopping:
                self.fail(queue.trouble)

    def _tick(self, attempt: WatchedAttempt) -> None:
        now = time.monotonic()
        self.screen.display.tick(now)
        attempt.tick(now, self._listening())
        self._do(self.policy.tick(now, attempt.doubtful(now)))

    def _take_signals(self) -> None:
        for number in self._signals.take() if self._signals is not None else ():
            if number == signal.SIGTSTP:
                if self._attempt is not None:
                    self._attempt.suspend()
                continue
            if number == WARNING:
                self._pass_on(number)
                continue
            self.received.append(number)
            name = signal.Signals(number).name
            if len(self.received) == 1:
                processes = f"{self.size} process{'es' if self.size > 1 else ''}"
                grace = self.policy.user_grace
                self.screen.log(
                    f"{name} received: stopping {processes}, which have {grace:g} s; a second signal kills them"
                )
            else:
                self.screen.log(f"{name} received again: killing")
            self.interrupt(number)

    def _pass_on(self, number: int) -> None:
        if self._attempt is not None and not self.policy.stopping:
            self.screen.log(f"{signal.Signals(number).name} received: passed on to the ranks (hvd.should_stop())")
            self._attempt.pass_on(number)

    def _over(self, attempt: WatchedAttempt) -> bool:
        if attempt.ended:
            self.screen.display.flush()
            self.screen.queue.status("")
            self.screen.queue.end_bars()
            if self.screen.queue.waiting_for() is None:
                return True
            if self.policy.phase is not Phase.ENDED or self.received:
                self.policy.ended(time.monotonic())
        return self.policy.gives_up(time.monotonic())
