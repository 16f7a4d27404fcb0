"""Thread that exchanges elastic-job events with the launcher during training.

- When the launcher ends the epoch, the thread aborts the engine, unless it has already stopped.
- When the engine loses a rank, the thread reports the loss to the launcher, even if the program keeps computing for
  minutes.
- When hosts change, the thread notifies the program's elastic states.

If the connection fails for any reason, the thread reconnects after a pause. Without events on rank 0, no new worker
could join the job.
"""

import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from horovod.common.contract.log import warner
from horovod.common.contract.membership import HostUpdateResult, Over, Place, Updated, decode_news
from horovod.common.contract.settings import Settings
from horovod.common.store.client import StoreClient, StoreError, StoreTimeout

if TYPE_CHECKING:
    from horovod._core import EndSignal, Engine

_NEWS_SECONDS = 600.0  # seconds until a request to the launcher times out and is repeated
_BLAME = (
    "its program goes on after a HorovodInternalError, though every operation fails; it must let the error pass to "
    "hvd.elastic.run"
)
# Seconds for the engine to detect lost workers itself after the launcher has ended the epoch. The engine's error has
# more details than the launcher's.
AT_ONCE = 0.05
# Initial and maximum delay before reconnecting, in seconds.
PAUSE, LONGEST_PAUSE = 0.5, 30.0
# If operations fail in this many consecutive seconds, tell the launcher that the program ignores failures.
_STUBBORN = 4
# Grace period in seconds before the engine aborts if workers have left without an error. Operations that all ranks have
# already agreed on can still succeed.
SOON = 1.0


class IgnoredFailure:
    """Detects programs that ignore failures and keep submitting operations."""

    def __init__(self, failures: int, now: float) -> None:
        self._failures = failures
        self._grown = 0
        self.next = now + 1.0
        """Time of the next check."""

    def look(self, failures: int, now: float) -> bool:
        """Return True if operations have failed in each of the last 4 seconds.

        A program that stops at its first error submits no further operations, so failures over several seconds show
        that the program ignores them.
        """
        if now >= self.next:
            self._grown = self._grown + 1 if failures > self._failures else 0
            self._failures, self.next = failures, now + 1.0
        return self._grown >= _STUBBORN


@dataclass
class _Epoch:
    """The epoch that this process has joined. ``engine`` is None after the engine has stopped."""

    place: Place
    engine: "Engine | None"
    signal: "EndSignal"
    gives_up: float | None = None
    """Time (``time.monotonic``) at which to abort the engine unless it has already stopped."""
    stubborn: IgnoredFailure | None = None
    """Detector that watches the program after the engine has stopped."""

    @property
    def next(self) -> float | None:
        """Time (``time.monotonic``) of the next action, or None if no action is due."""
        if self.stubborn is not None:
            return self.stubborn.next
        return None if self.engine is None else self.gives_up


def lost_workers(ended: tuple[str, int] | None, place: Place) -> list[int]:
    """Return the numbers of the lost workers, given a result of ``Engine.ended``."""
    if ended is None or ended[0] != "lost" or not 0 <= ended[1] < place.size:
        return []
    return [place.workers[ended[1]]]


class Listening:
    """Event thread of one process, which runs from the first epoch until the process exits.

    Args:
        worker: Number of the worker.
        connect: Function that returns a new connection to the store.
        updated: Function called for each host update, with the update's time, kind and epoch.
    """

    def __init__(
        self, worker: int, connect: Callable[[], StoreClient], updated: Callable[[float, HostUpdateResult, int], None]
    ) -> None:
        self._worker = worker
        self._connect = connect
        self._updated = updated
        # Keep a reference, so that forked children do not destroy the client and close the connection.
        self._client: StoreClient | None = None
        self._lock = threading.Lock()
        self._epoch: _Epoch | None = None
        # Latest end-of-epoch message. It can arrive before this process joins that epoch.
        self._over: Over | None = None
        # Host updates for an epoch that this process has not yet joined.
        self._early: list[Updated] = []
        # Unsent reports to the launcher: an epoch, the workers lost in it, and any mistake in this rank's program.
        self._pending_reports: list[tuple[int, list[int], str]] = []
        # Sequence number of the last event received from the launcher.
        self._after = 0
        self._warned: set[str] = set()
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        threading.Thread(target=self._run, name="horovod-news", daemon=True).start()

    def begin(self, place: Place, engine: "Engine") -> None:
        """Start handling events of an epoch that this process has joined."""
        with self._lock:
            self._epoch = _Epoch(place, engine, engine.end_signal())
            if self._over is not None:
                self._end(self._over)
            early, self._early = self._early, []
        for news in early:
            self._take(news)
        os.eventfd_write(self._changed, 1)

    def _run(self) -> None:
        pause = PAUSE
        while True:
            try:
                if self._client is None:
                    self._client = self._connect()
                self._receive(self._client)
                pause = PAUSE
            # The error can be temporary, for example if too many files are open, so retry.
            except (StoreError, ValueError, OSError, zmq.ZMQError) as error:
                self._warn(f"the connection on which the launcher's news come has failed, and is tried again: {error}")
                if self._client is not None:
                    self._client.close()
                    self._client = None
                self._rest(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _receive(self, client: StoreClient) -> None:
        """Receive events from the launcher and handle them.

        A timeout is ignored, because the launcher can be suspended (Ctrl-Z). If the launcher is gone, training ranks
        detect that by other means. All other errors are raised.
        """
        try:
            self._after, news = client.news(self._worker, self._after, self._seconds(), self._descriptors())
        except StoreTimeout:
            news = []
        for data in news:
            try:
                event = decode_news(data)
            except ValueError as error:
                self._warn(f"news of the launcher that cannot be read are passed over: {error}")
                continue
            self._take(event)
        self._look()
        self._send_reports()

    def _rest(self, seconds: float) -> None:
        """Sleep for ``seconds``, but wake up early if the engine stops."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            poll = select.poll()
            for descriptor in self._descriptors():
                poll.register(descriptor, select.POLLIN)
            poll.poll(1000 * min(left, self._seconds_until_due()))
            self._look()

    def _warn(self, text: str) -> None:
        """Log a warning, but only once for each kind. The part of ``text`` before the colon identifies the kind."""
        kind = text.partition(":")[0]
        if kind in self._warned:
            return
        self._warned.add(kind)
        with self._lock:
            rank = 0 if self._epoch is None else self._epoch.place.rank
        warner(rank, Settings.from_environ())(text)

    def _send_reports(self) -> None:
        """Send the pending reports to the launcher. A suspended launcher (Ctrl-Z) answers once it resumes."""
        assert self._client is not None
        while self._pending_reports:
            try:
                self._client.report_end(self._worker, *self._pending_reports[0])
            except StoreTimeout:
                return
            del self._pending_reports[0]

    def _take(self, news: Over | Updated) -> None:
        with self._lock:
            if isinstance(news, Over):
                self._over = news
                self._end(news)
                return
            epoch = 0 if self._epoch is None else self._epoch.place.epoch
            if news.epoch > epoch:
                self._early.append(news)
        if news.epoch == epoch:
            self._updated(news.timestamp, news.result, news.epoch)

    def _end(self, over: Over) -> None:
        epoch = self._epoch
        if epoch is not None and epoch.place.epoch == over.epoch and epoch.gives_up is None:
            epoch.gives_up = time.monotonic() + (AT_ONCE if over.lost else SOON)

    def _seconds(self) -> float:
        return 0.0 if self._pending_reports else self._seconds_until_due()

    def _seconds_until_due(self) -> float:
        """Return the seconds until the next action is due."""
        with self._lock:
            at = None if self._epoch is None else self._epoch.next
            return _NEWS_SECONDS if at is None else max(0.0, at - time.monotonic())

    def _descriptors(self) -> list[int]:
        with self._lock:
            if self._epoch is None or self._epoch.engine is None:
                return [self._changed]
            return [self._changed, self._epoch.signal.fileno()]

    def _look(self) -> None:
        """Check whether the engine has stopped. Abort it if it is still running after its deadline."""
        try:
            os.eventfd_read(self._changed)
        except BlockingIOError:
            pass
        with self._lock:
            epoch, over = self._epoch, self._over
        if epoch is None:
            return
        if epoch.engine is None:
            self._watch_program(epoch)
            return
        try:
            os.eventfd_read(epoch.signal.fileno())
        except BlockingIOError:
            if over is not None and epoch.gives_up is not None and time.monotonic() >= epoch.gives_up:
                epoch.engine.give_up(*_why(over, epoch.place))
                epoch.gives_up = None
            return
        # Drop the reference to the old engine, because the next engine needs its memory.
        ended, epoch.engine = epoch.engine.ended(), None
        if ended is not None and ended[0] != "left":  # a worker that leaves the job tells the launcher itself
            self._pending_reports.append((epoch.place.epoch, lost_workers(ended, epoch.place), ""))
            epoch.stubborn = IgnoredFailure(epoch.signal.failures(), time.monotonic())

    def _watch_program(self, epoch: _Epoch) -> None:
        if epoch.stubborn is None or not epoch.stubborn.look(epoch.signal.failures(), time.monotonic()):
            return
        epoch.stubborn = None
        self._pending_reports.append((epoch.place.epoch, [], _BLAME))


def _why(over: Over, place: Place) -> tuple[str, int]:
    lost = [rank for rank, worker in enumerate(place.workers) if worker in over.lost]
    if not lost:
        return f"the launcher says that the epoch is over: {over.why}", -1
    who = f"rank {lost[0]} was" if len(lost) == 1 else f"ranks {', '.join(map(str, lost))} were"
    return f"{who} lost, as the launcher says: {over.why}", lost[0]
