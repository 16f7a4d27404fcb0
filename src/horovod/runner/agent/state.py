"""State machine of a job on one host, which decides when processes get signals and when the job has ended.

It performs no I/O. The caller passes the current time (monotonic, seconds) and the set of live processes.

A stop can begin with a signal to the ranks only, such as SIGINT after Ctrl-C. The ranks then keep their data loaders
and other helpers. When the ranks have exited or the grace period is over, all processes get SIGTERM.

An elastic job continues when all its workers have exited, because more workers can start.

`ranks_of` chooses the processes that receive the user's Ctrl-C.

    WAITING --StartJob--> RUNNING --all workers have exited--> WINDING_DOWN --no process left--> FINISHED
       |                     |                                     | processes left after LINGER s
       '--- Stop, a signal, bad orders, launcher lost -------------+--> STOPPING --SIGTERM ... SIGKILL--> FINISHED
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

# Seconds between SIGTERM and SIGKILL, unless the launcher requests another time
TERM_GRACE = 5.0
# Seconds to wait for processes after SIGKILL. An unreachable network disk, for example, can block their exit.
GIVE_UP = 5.0
LINGER = 0.2  # Grace period in seconds for children of exited workers, such as multiprocessing helpers


class HostPhase(Enum):
    """Phase of a job on one host, as its agent sees it."""

    WAITING = "waiting"
    RUNNING = "running"
    WINDING_DOWN = "winding down"
    STOPPING = "stopping"
    FINISHED = "finished"


@dataclass(frozen=True)
class Step:
    """Signals that the agent must send now, as returned by `HostState.advance`.

    Attributes:
        first: Signal for all ranks, or 0 for none. The caller confirms it with `HostState.confirm_signalled`.
        term: Processes that get SIGTERM.
        kill: Processes that get SIGKILL.
        survivors: Processes that could not be killed, or None until the job has finished on this host.
    """

    first: int = 0
    term: Sequence[int] = ()
    kill: Sequence[int] = ()
    survivors: Sequence[int] | None = None


class HostState:
    """State machine of the job on this host. `phase` is its current phase."""

    def __init__(self) -> None:
        self.phase = HostPhase.WAITING
        self._started = False
        self._lasting = False
        self._linger_until: float  # End of the grace period for child processes of exited workers
        self._kill_at: float | None = None
        # Pids of the processes that have received SIGTERM
        self._requested_stops: set[int] = set()
        # Signal that the ranks must still receive before SIGTERM, or 0
        self._first = 0
        # Pids of the processes that have received the signal `_first`, or None if it has not been sent
        self._ranks: list[int] | None = None
        self._term_at = 0.0  # Time at which SIGTERM is sent if `_first` was sent before

    @property
    def changes(self) -> bool:
        """True if the caller must scan the process tree, because no signal reports the exits of workers' children."""
        return self.phase in (HostPhase.WINDING_DOWN, HostPhase.STOPPING)

    @property
    def stopping(self) -> bool:
        """True if the job is being stopped."""
        return self.phase is HostPhase.STOPPING

    def start(self, lasting: bool = False) -> bool:
        """Record a StartJob request. Return False if the job was already started.

        If `lasting` is True, the job continues even while it has no workers.
        """
        first = not self._started
        self._lasting = lasting
        self._started = True
        if self.phase is HostPhase.WAITING:
            self.phase = HostPhase.RUNNING
        return first

    def stop(self, grace: float, now: float, first: int = 0) -> None:
        """Start terminating all processes: SIGTERM now, and SIGKILL `grace` seconds later.

        If `first` is given, the ranks receive this signal now and have `grace` seconds to exit. All remaining processes
        then receive SIGTERM, and SIGKILL TERM_GRACE seconds later. Repeated calls can only shorten the time.
        """
        if self.phase is HostPhase.FINISHED:
            return
        if self.phase is not HostPhase.STOPPING:
            self._first, self._term_at = first, now + grace
        elif not first:
            self._first = 0
        kill_at = now + grace + (TERM_GRACE if first else 0)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        self.phase = HostPhase.STOPPING

    def confirm_signalled(self, ranks: Sequence[int]) -> None:
        """Record which processes have received the first stop signal."""
        self._ranks = list(ranks)
        if self._first == signal.SIGTERM:
            self._requested_stops.update(ranks)

    def advance(self, now: float, running: bool, look: Callable[[], list[int]]) -> Step:
        """Return the signals to send now.

        Args:
            now: Current time (monotonic, s).
            running: True if at least one worker is running.
            look: Function that returns the pids of all live processes of the job.
        """
        runs_on = self.phase is HostPhase.RUNNING and (running or self._lasting)
        if runs_on or self.phase in (HostPhase.WAITING, HostPhase.FINISHED):
            return Step()
        if self.phase is HostPhase.RUNNING:
            self.phase, self._linger_until = HostPhase.WINDING_DOWN, now + LINGER
        alive = look() if self._started else []
        if not alive:
            return self._finish([])
        if self.phase is HostPhase.WINDING_DOWN:
            if now >= self._linger_until:
                self.stop(TERM_GRACE, now)  # Terminate child processes that outlived their workers.
            return Step()
        assert self._kill_at is not None
        if self._first:
            if self._ranks is None:
                return Step(first=self._first)
            # Once all ranks have exited, give their helper processes, such as data loaders, only LINGER more seconds.
            if not set(self._ranks).intersection(alive):
                self._term_at = min(self._term_at, now + LINGER)
            if now < self._term_at:
                return Step()
            self._first = 0
            self._kill_at = min(self._kill_at, now + TERM_GRACE)
        if now >= self._kill_at + GIVE_UP:
            return self._finish(alive)
        if now >= self._kill_at:
            return Step(kill=alive)
        asked = [pid for pid in alive if pid not in self._requested_stops]
        self._requested_stops.update(asked)
        return Step(term=asked)

    def _finish(self, survivors: list[int]) -> Step:
        self.phase = HostPhase.FINISHED
        return Step(kill=survivors, survivors=survivors)

    def gives_up(self, now: float) -> bool:
        """Return True if the launcher has had enough time to read the last reports.

        Call this only after all processes have exited and the launcher is lost.
        """
        if self._kill_at is None:
            self._kill_at = now
        return now >= self._kill_at + GIVE_UP


def ranks_of(workers: Collection[int], called: Collection[int], parents: Mapping[int, int]) -> list[int]:
    """Return the processes that must receive a signal from the user, such as Ctrl-C.

    The command that was started for a worker may be a shell or another wrapper around the rank, which is the process
    that has called `hvd.init()`. Only the rank receives the signal: its data loaders and other helpers must keep
    running while it shuts down, and a wrapper might kill the rank instead of waiting for it. If no process of a worker
    has called `hvd.init()`, all its processes receive the signal, as from a terminal.

    Args:
        workers: Process ids of the started commands.
        called: Process ids that have reported a call to `hvd.init()`. Some processes may have exited or belong to
            another pid namespace.
        parents: Parent pid of each live process.
    """
    worker_of = {pid: worker for pid in parents if (worker := _worker(pid, workers, parents)) is not None}
    known = {worker_of[pid] for pid in called if pid in worker_of}
    return [pid for pid, worker in worker_of.items() if pid in called or worker not in known]


def _worker(pid: int, workers: Collection[int], parents: Mapping[int, int]) -> int | None:
    """Return the worker that is process `pid` or an ancestor of it, or None."""
    seen: set[int] = set()
    while pid not in workers:
        parent = parents.get(pid)
        # No worker is an ancestor, or the table is inconsistent because processes exited while it was read.
        if parent is None or parent in seen:
            return None
        seen.add(pid)
        pid = parent
    return pid
