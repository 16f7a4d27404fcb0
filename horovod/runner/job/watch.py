"""The loop of whoever launches processes and watches them: sleeps until a descriptor, a signal or the clock has
something to do, shows what comes, and does what the policy decides.

What runs the processes is an `Attempt`: our agents (`job.attempt`), or another launcher (`foreign.foreign_job`).
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Mapping
from typing import Protocol

from horovod.runner.base.signals import WARNING, SignalQueue
from horovod.runner.job.policy import Action, Late, Launch, Phase, Policy, Stop
from horovod.runner.output.screen import Screen

_LONGEST = 3600.0  # s of one wait; poll takes 24 days at most

QUEUE_LIMIT = 4 << 20  # bytes of output waiting for their reader before the processes have to wait


class Attempt(Protocol):
    """One set of processes, from their start to their end. No call waits."""

    def start(self) -> None:
        """Begin; called once, before everything else."""

    @property
    def gone(self) -> bool:
        """Does nothing run any more?"""

    def events(self, listening: bool) -> dict[int, int]:
        """Descriptors and what to poll them for; `listening` False: leave output where it is."""

    def serve(self, ready: set[int], listening: bool) -> None:
        """Take what has come and write what can be written."""

    def next_time(self) -> float | None:
        """When `tick` has something to do, None: nothing."""

    def tick(self, now: float, listening: bool) -> None:
        """Do what depends on the clock."""

    def launch(self) -> None:
        """All hosts are there: start the processes."""

    def stop(self, grace: float, first: int = 0) -> None:
        """SIGTERM to all processes, SIGKILL after `grace` s; again: sooner. `first`: see `policy.Stop`."""

    def suspend(self) -> None:
        """Ctrl-Z."""

    def pass_on(self, number: int) -> None:
        """A signal that warns of the end, to all processes that catch it."""

    def doubtful(self, now: float) -> bool:
        """May something be lost that would explain the failures that have been seen?"""

    def late(self) -> str:
        """Who has not come within the start timeout."""


def wait_for(events: Mapping[int, int], until: float | None) -> set[int]:
    """The descriptors that are ready. `until`: when to return without any (monotonic), None: never; or earlier."""
    poll = select.poll()
    for fd, event in events.items():
        poll.register(fd, event)
    timeout = None if until is None else min(max(0.0, until - time.monotonic()), _LONGEST) * 1000 + 1
    return {fd for fd, _ in poll.poll(timeout)}


class Watch:
    """`received`: signals that have ended the job. `troubles`: what went wrong besides the ranks themselves. `size`:
    number of its processes."""

    def __init__(self, screen: Screen, policy: Policy, signals: SignalQueue | None, size: int) -> None:
        self.screen = screen
        self.policy = policy
        self.received: list[int] = []
        self.troubles: list[str] = []
        self._signals = signals
        self.size = size
        self._attempt: Attempt | None = None
        self._readers = True

    def run(self, attempt: Attempt) -> None:
        """To its end, or until what does not end is given up."""
        self._attempt = attempt
        attempt.start()
        try:
            self._loop(attempt)
        except KeyboardInterrupt:  # from a program's own handler: its ranks still get the time to end
            self.interrupt()
            self._loop(attempt)
            raise

    def _loop(self, attempt: Attempt) -> None:
        while not self._over(attempt):
            self._wait(attempt)
            self._tick(attempt)

    # What others tell

    def fail(self, *troubles: str) -> None:
        """The one way of failures that are not a rank's: they are kept for the end, and everything stops."""
        self.troubles += troubles
        self._do(self.policy.trouble(time.monotonic()))

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Stop the job because of this signal of the user's."""
        self._do(self.policy.interrupted(time.monotonic(), number))

    def connected(self) -> None:
        """Every host is there."""
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

    # The loop

    def _listening(self) -> bool:
        """Do we take output? Not while our own reader is slow."""
        return self.screen.queue.pending < QUEUE_LIMIT or bool(self.received)

    def _wait(self, attempt: Attempt) -> None:
        """Sleep until something happens, then take what has happened."""
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
            self._readers = False  # said once, though the other stream may be read on
            if not self.policy.stopping:
                self.fail(queue.trouble)

    def _tick(self, attempt: Attempt) -> None:
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
                self.screen.say(
                    f"{name} received: stopping {processes}, which have {grace:g} s; a second signal kills them"
                )
            else:
                self.screen.say(f"{name} received again: killing")
            self.interrupt(number)

    def _pass_on(self, number: int) -> None:
        if self._attempt is not None and not self.policy.stopping:
            self.screen.say(f"{signal.Signals(number).name} received: passed on to the ranks (hvd.should_stop())")
            self._attempt.pass_on(number)

    def _over(self, attempt: Attempt) -> bool:
        if attempt.gone:
            self.screen.display.flush()
            self.screen.queue.status("")
            self.screen.queue.end_bars()
            if self.screen.queue.waiting_for() is None:
                return True
            if self.policy.phase is not Phase.ENDED or self.received:
                self.policy.ended(time.monotonic())
        return self.policy.gives_up(time.monotonic())
