"""Listener for news about an elastic job during training, in a thread independent of the program.

- The launcher ends the epoch: the engine gives up, unless it has already noticed.
- The engine has lost a rank: the launcher is told, even if the program continues to compute for a long time.
- Hosts have changed: the states of the program are told.

If the connection fails for any reason, it is made again after a pause, because no new worker can join a job whose rank
0 gets no news.
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

_NEWS_SECONDS = 600.0  # timeout of a request for news, after which it is repeated
_BLAME = (
    "its program goes on after a HorovodInternalError, though every operation fails; it must let the error pass to "
    "hvd.elastic.run"
)
# Seconds that the engine gets to detect an end that the launcher already knows, with more detail.
AT_ONCE = 0.05
PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between a failed connection and the next one
_STUBBORN = 4  # seconds of repeated failures after which a program counts as stubborn
# The same as AT_ONCE if workers have left, because operations agreed on earlier may still succeed.
SOON = 1.0


class IgnoredFailure:
    """Detector of programs that continue although all their operations fail. Pure."""

    def __init__(self, failures: int, now: float) -> None:
        self._failures = failures
        self._grown = 0
        self.next = now + 1.0
        """Time of the next check."""

    def look(self, failures: int, now: float) -> bool:
        """Return True if more operations have failed in each of the last seconds.

        A program that lets the first error pass starts no further operations.
        """
        if now >= self.next:
            self._grown = self._grown + 1 if failures > self._failures else 0
            self._failures, self.next = failures, now + 1.0
        return self._grown >= _STUBBORN


@dataclass
class _Epoch:
    """Epoch that was formed. ``engine``: None once it has ended."""

    place: Place
    engine: "Engine | None"
    signal: "EndSignal"
    gives_up: float | None = None
    """Time at which the engine gives up unless it ends by itself."""
    stubborn: IgnoredFailure | None = None
    """Set once the engine has ended."""

    @property
    def next(self) -> float | None:
        """Time of the next action; None if there is none."""
        if self.stubborn is not None:
            return self.stubborn.next
        return None if self.engine is None else self.gives_up


def lost_workers(ended: tuple[str, int] | None, place: Place) -> list[int]:
    """Return the workers that the engine has lost, from the result of ``Engine.ended``."""
    if ended is None or ended[0] != "lost" or not 0 <= ended[1] < place.size:
        return []
    return [place.workers[ended[1]]]


class Listening:
    """Listener of one process, from its first epoch to its end.

    Args:
        worker: Number of the worker.
        connect: Connects to the store.
        updated: Called with time, host update and the epoch it was sent to, which may have ended meanwhile.
    """

    def __init__(
        self, worker: int, connect: Callable[[], StoreClient], updated: Callable[[float, HostUpdateResult, int], None]
    ) -> None:
        self._worker = worker
        self._connect = connect
        self._updated = updated
        self._client: StoreClient | None = None  # kept referenced, so that a forked child does not close it
        self._lock = threading.Lock()
        self._epoch: _Epoch | None = None
        self._over: Over | None = None  # latest end of an epoch, which may begin here only a moment later
        self._early: list[Updated] = []  # updates for an epoch that has not begun here yet
        self._untold: list[tuple[int, list[int], str]] = []  # (epoch, lost, blame) still to be reported to the launcher
        self._after = 0  # number of the last received news
        self._warned: set[str] = set()
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        threading.Thread(target=self._run, name="horovod-news", daemon=True).start()

    def begin(self, place: Place, engine: "Engine") -> None:
        """Start listening for an epoch that was formed with this place and engine."""
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
                self._hear(self._client)
                pause = PAUSE
            except (StoreError, ValueError, OSError, zmq.ZMQError) as error:  # for example too many open files
                self._warn(f"the connection on which the launcher's news come has failed, and is tried again: {error}")
                if self._client is not None:
                    self._client.close()
                    self._client = None
                self._rest(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _hear(self, client: StoreClient) -> None:
        """Receive and handle news from the launcher.

        Raises all errors except for a timeout. A launcher that does not answer may be stopped (Ctrl-Z), and if it is
        gone, ranks in training notice by other means.
        """
        try:
            self._after, news = client.news(self._worker, self._after, self._seconds(), self._descriptors())
        except StoreTimeout:
            news = []
        for data in news:
            try:
                told = decode_news(data)
            except ValueError as error:
                self._warn(f"news of the launcher that cannot be read are passed over: {error}")
                continue
            self._take(told)
        self._look()
        self._tell()

    def _rest(self, seconds: float) -> None:
        """Pause, but notice the end of the engine."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            poll = select.poll()
            for descriptor in self._descriptors():
                poll.register(descriptor, select.POLLIN)
            poll.poll(1000 * min(left, self._due()))
            self._look()

    def _warn(self, text: str) -> None:
        """Log each kind of warning only once."""
        kind = text.partition(":")[0]
        if kind in self._warned:
            return
        self._warned.add(kind)
        with self._lock:
            rank = 0 if self._epoch is None else self._epoch.place.rank
        warner(rank, Settings.from_environ())(text)

    def _tell(self) -> None:
        """Report findings to the launcher. A stopped launcher (Ctrl-Z) answers when it continues."""
        assert self._client is not None
        while self._untold:
            try:
                self._client.heard(self._worker, *self._untold[0])
            except StoreTimeout:
                return
            del self._untold[0]

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
        return 0.0 if self._untold else self._due()

    def _due(self) -> float:
        """Return the seconds until the next action."""
        with self._lock:
            at = None if self._epoch is None else self._epoch.next
            return _NEWS_SECONDS if at is None else max(0.0, at - time.monotonic())

    def _descriptors(self) -> list[int]:
        with self._lock:
            if self._epoch is None or self._epoch.engine is None:
                return [self._changed]
            return [self._changed, self._epoch.signal.fileno()]

    def _look(self) -> None:
        """Handle the end of the engine, or make it give up when that is due."""
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
        ended, epoch.engine = epoch.engine.ended(), None  # release the engine, because the next one may need its memory
        if ended is not None and ended[0] != "left":  # a worker that leaves reports that itself
            self._untold.append((epoch.place.epoch, lost_workers(ended, epoch.place), ""))
            epoch.stubborn = IgnoredFailure(epoch.signal.failures(), time.monotonic())

    def _watch_program(self, epoch: _Epoch) -> None:
        if epoch.stubborn is None or not epoch.stubborn.look(epoch.signal.failures(), time.monotonic()):
            return
        epoch.stubborn = None
        self._untold.append((epoch.place.epoch, [], _BLAME))


def _why(over: Over, place: Place) -> tuple[str, int]:
    lost = [rank for rank, worker in enumerate(place.workers) if worker in over.lost]
    if not lost:
        return f"the launcher says that the epoch is over: {over.why}", -1
    who = f"rank {lost[0]} was" if len(lost) == 1 else f"ranks {', '.join(map(str, lost))} were"
    return f"{who} lost, as the launcher says: {over.why}", lost[0]
