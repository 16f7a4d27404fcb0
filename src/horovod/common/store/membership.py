"""Membership server, at which workers of an elastic job wait for the launcher's decisions and events.

    worker --Come--> waits for its place, or a refusal
           --News--> waits for all events after the last one it knows
           --Heard-> answered immediately
    the launcher reads these messages (``told``) and answers with ``place``, ``refuse``, ``publish``

``MembershipRequests`` does no I/O and is part of ``table``. ``MembershipControl`` connects the launcher's thread to the
store's thread by two queues, one per direction. Each queue has a descriptor that becomes readable when the queue has
entries. So neither thread blocks the other, and neither polls.
"""

import collections
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from horovod.common.store.messages import Come, Heard, News, Reply

REFUSED = "refused"
"""Error code of a refusal; the text is in the reply's value."""
_KEPT = 64  # maximum number of events to keep per worker

Replies = list[tuple[bytes, Reply]]


@dataclass(frozen=True)
class Came:
    """Message to the launcher that a worker waits for a place.

    Attributes:
        worker: Number of the worker.
        epoch: Previous epoch of the worker; 0 if none.
        lost: Workers of that epoch that it has lost.
        facts: Encoded properties of the worker.
        in_sync: True if its state has missed nothing since the last sync.
        holds: True if its state contains the progress of training; None: unknown.
    """

    worker: int
    epoch: int
    lost: tuple[int, ...]
    facts: bytes
    in_sync: bool = False
    holds: bool | None = None


@dataclass(frozen=True)
class HasHeard:
    """Message to the launcher that a worker has noticed the end of its epoch and has not come back yet.

    If it will not come back, ``blame`` says what its program does wrong.
    """

    worker: int
    epoch: int
    lost: tuple[int, ...]
    blame: str = ""


@dataclass(frozen=True)
class Met:
    """Message to the launcher that all ranks of a group have completed an exchange.

    ``silent`` is True if all values were empty. In the exchange at the end of ``init``, a value is the reason why a
    rank is not ready.
    """

    group: str
    round: int
    silent: bool


Told = Came | HasHeard | Met


@dataclass
class _Listener:
    """Events to send to a worker, and its request that waits for events."""

    news: list[tuple[int, bytes]] = field(default_factory=list)
    waiting: tuple[bytes, News] | None = None


class MembershipRequests:
    """Membership server without I/O. ``told`` lists messages for the launcher, which the reader removes."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self._coming: dict[int, tuple[bytes, Come]] = {}  # (client, request) of waiting workers, by worker
        self._listeners: dict[int, _Listener] = {}
        self._last = 0  # number of the last published event

    def handle(self, client: bytes, request: Come | Heard | News) -> Replies:
        """Handle a worker's request. The reply may be returned by a later call."""
        if isinstance(request, Come):
            return self._come(client, request)
        if isinstance(request, News):
            return self._listen(client, request)
        self.told.append(HasHeard(request.worker, request.epoch, tuple(request.lost), request.blame))
        return [(client, Reply(request.id))]

    def _come(self, client: bytes, request: Come) -> Replies:
        replies: Replies = []
        earlier = self._coming.pop(request.worker, None)
        if earlier is not None and earlier[0] != client:
            replies.append((earlier[0], Reply(earlier[1].id, error=f"another process came as worker {request.worker}")))
        self._coming[request.worker] = client, request
        if earlier is None or earlier[1].epoch != request.epoch:
            lost, stand = tuple(request.lost), (request.in_sync, request.holds)
            self.told.append(Came(request.worker, request.epoch, lost, request.facts, *stand))
        return replies

    def _listen(self, client: bytes, request: News) -> Replies:
        listener = self._listeners.setdefault(request.worker, _Listener())
        listener.news = [one for one in listener.news if one[0] > request.after]
        listener.waiting = client, request
        return self._deliver(listener)

    def _deliver(self, listener: _Listener) -> Replies:
        if listener.waiting is None or not listener.news:
            return []
        (client, request), listener.waiting = listener.waiting, None
        return [(client, Reply(request.id, [value for _, value in listener.news], round=listener.news[-1][0]))]

    def met(self, group: str, number: int, silent: bool) -> None:
        """Record that a group has completed an exchange; called by the table."""
        self.told.append(Met(group, number, silent))

    # Methods for the launcher's answers.

    def place(self, worker: int, value: bytes) -> Replies:
        """Give a waiting worker its place in an epoch. From then on, it can receive events.

        No effect if the worker does not wait: then its process is gone, and another part of the launcher detects that.
        """
        waiting = self._coming.pop(worker, None)
        if waiting is None:
            return []
        self._listeners.setdefault(worker, _Listener())
        return [(waiting[0], Reply(waiting[1].id, [value]))]

    def refuse(self, worker: int, why: str) -> Replies:
        """Tell a waiting worker that it gets no place, and why."""
        waiting = self._coming.pop(worker, None)
        return [] if waiting is None else [(waiting[0], Reply(waiting[1].id, [why.encode()], error=REFUSED))]

    def publish(self, workers: Iterable[int], value: bytes) -> Replies:
        """Send an event to these workers, except those that have no place."""
        self._last += 1
        replies: Replies = []
        for listener in [self._listeners[worker] for worker in workers if worker in self._listeners]:
            listener.news = [*listener.news, (self._last, value)][-_KEPT:]
            replies += self._deliver(listener)
        return replies

    def forget(self, worker: int) -> None:
        """Forget a worker whose process is gone."""
        self._coming.pop(worker, None)
        self._listeners.pop(worker, None)


class Exchanges(Protocol):
    """Interface to the part of the store's table that the launcher changes."""

    def fail(self, group: str, text: str) -> Replies: ...
    def set_first(self, name: str, value: bytes) -> Replies: ...


Command = Callable[[Exchanges], Replies]


class MembershipControl:
    """Launcher's interface to the membership server, to be passed to ``StoreServer``.

    Only ``serve`` and ``asked`` are for the store's thread; all other public methods are for the launcher's thread.
    """

    def __init__(self) -> None:
        self.desk = MembershipRequests()
        """Used by the store's thread only."""
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when ``take`` returns entries."""
        self.asked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._told: collections.deque[Told] = collections.deque()
        self._commands: collections.deque[Command] = collections.deque()

    # Launcher's thread.

    def take(self) -> list[Told]:
        """Return the messages that have arrived from workers since the last call, in order."""
        _clear(self.fd)
        taken = []
        while self._told:
            taken.append(self._told.popleft())
        return taken

    def place(self, worker: int, value: bytes) -> None:
        """Call ``MembershipRequests.place`` in the store's thread. The next methods work the same way."""
        self._ask(lambda _: self.desk.place(worker, value))

    def refuse(self, worker: int, why: str) -> None:
        self._ask(lambda _: self.desk.refuse(worker, why))

    def publish(self, workers: Iterable[int], value: bytes) -> None:
        them = list(workers)
        self._ask(lambda _: self.desk.publish(them, value))

    def forget(self, worker: int) -> None:
        def forget(_: Exchanges) -> Replies:
            self.desk.forget(worker)
            return []

        self._ask(forget)

    def fail(self, group: str, why: str) -> None:
        """Make this group's exchanges fail, so that its ranks do not wait for lost ranks."""
        self._ask(lambda table: table.fail(group, why))

    def set(self, name: str, value: bytes) -> None:
        """Store a value under a name, unless the name already has one."""
        self._ask(lambda table: table.set_first(name, value))

    def close(self) -> None:
        """Close the descriptors. Call this only after closing the server."""
        os.close(self.fd)
        os.close(self.asked)

    def _ask(self, command: Command) -> None:
        self._commands.append(command)
        os.eventfd_write(self.asked, 1)

    # Store's thread.

    def serve(self, table: Exchanges) -> Replies:
        """Execute the launcher's requests in the table, and pass the workers' messages on to the launcher."""
        _clear(self.asked)
        replies: Replies = []
        while self._commands:
            replies += self._commands.popleft()(table)
        if self.desk.told:
            told, self.desk.told = self.desk.told, []
            self._told.extend(told)
            os.eventfd_write(self.fd, 1)
        return replies


def _clear(fd: int) -> None:
    try:
        os.eventfd_read(fd)
    except BlockingIOError:
        pass
