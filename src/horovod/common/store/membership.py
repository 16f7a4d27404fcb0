"""Membership server, which sends the launcher's decisions and events to the workers of an elastic job.

``MembershipRequests`` performs no I/O and is part of ``table``. ``MembershipControl`` connects the launcher's thread to
the store's thread with two queues, one per direction. Each queue has a descriptor that becomes readable when the queue
has entries, so neither thread blocks the other, and neither polls.

Messages of a worker, which the launcher reads (``outgoing``) and answers with ``place``, ``refuse`` or ``publish``:

    worker --Come--> waits for its rank, or a rejection
           --News--> waits for all events after the last one that it has received
           --Ended-> answered immediately
"""

import collections
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from horovod.common.store.messages import Join, Leave, News, Reply

REFUSED = "refused"
"""Error code of a rejection. The reply's value contains the reason."""
_MAX_EVENTS = 64  # maximum number of events to keep per worker

Replies = list[tuple[bytes, Reply]]


@dataclass(frozen=True)
class JoinRequest:
    """Tells the launcher that a worker is waiting for a rank.

    Attributes:
        worker: Number of the worker.
        epoch: Previous epoch of the worker, or 0 if there is none.
        lost: Workers of the previous epoch that this worker has lost.
        facts: Encoded properties of the worker.
        in_sync: True if the worker's state includes all changes since the last sync.
        holds: True if the worker's state contains the progress of training. None means unknown.
    """

    worker: int
    epoch: int
    lost: tuple[int, ...]
    facts: bytes
    in_sync: bool = False
    holds: bool | None = None


@dataclass(frozen=True)
class EndReported:
    """Tells the launcher that a worker has noticed the end of its epoch and has not joined again yet.

    If the worker will not join again, ``blame`` describes the mistake in its program.
    """

    worker: int
    epoch: int
    lost: tuple[int, ...]
    blame: str = ""


@dataclass(frozen=True)
class RoundEnd:
    """Tells the launcher that all ranks of a group have completed an exchange.

    ``silent`` is True if all values were empty. In the exchange at the end of ``init``, a rank's value is the reason
    why the rank is not ready.
    """

    group: str
    round: int
    silent: bool


WorkerMessage = JoinRequest | EndReported | RoundEnd


@dataclass
class _Listener:
    """Pending events for one worker, and its outstanding request for events."""

    news: list[tuple[int, bytes]] = field(default_factory=list)
    waiting: tuple[bytes, News] | None = None


class MembershipRequests:
    """Membership logic without I/O. Messages for the launcher are collected in the list ``outgoing``."""

    def __init__(self) -> None:
        self.outgoing: list[WorkerMessage] = []
        # Client and request of each worker that waits for a rank in the next epoch.
        self._coming: dict[int, tuple[bytes, Join]] = {}
        self._listeners: dict[int, _Listener] = {}
        # Number of the last published event.
        self._last = 0

    def handle(self, client: bytes, request: Join | Leave | News) -> Replies:
        """Handle a worker's request, and return the replies to send.

        If a request has to wait, a later method call returns its reply.
        """
        if isinstance(request, Join):
            return self._on_join(client, request)
        if isinstance(request, News):
            return self._listen(client, request)
        self.outgoing.append(EndReported(request.worker, request.epoch, tuple(request.lost), request.blame))
        return [(client, Reply(request.id))]

    def _on_join(self, client: bytes, request: Join) -> Replies:
        replies: Replies = []
        earlier = self._coming.pop(request.worker, None)
        if earlier is not None and earlier[0] != client:
            replies.append((earlier[0], Reply(earlier[1].id, error=f"another process came as worker {request.worker}")))
        self._coming[request.worker] = client, request
        if earlier is None or earlier[1].epoch != request.epoch:
            lost, stand = tuple(request.lost), (request.in_sync, request.holds)
            self.outgoing.append(JoinRequest(request.worker, request.epoch, lost, request.facts, *stand))
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
        """Record that a group has completed an exchange. Called by the table."""
        self.outgoing.append(RoundEnd(group, number, silent))

    # The methods below are called by the launcher.

    def place(self, worker: int, value: bytes) -> Replies:
        """Send a waiting worker its rank in an epoch, and let it receive events from now on.

        Has no effect if the worker is not waiting, because its process is then gone.
        """
        waiting = self._coming.pop(worker, None)
        if waiting is None:
            return []
        self._listeners.setdefault(worker, _Listener())
        return [(waiting[0], Reply(waiting[1].id, [value]))]

    def refuse(self, worker: int, why: str) -> Replies:
        """Reject a waiting worker's request for a rank. The worker gets the reason ``why``."""
        waiting = self._coming.pop(worker, None)
        return [] if waiting is None else [(waiting[0], Reply(waiting[1].id, [why.encode()], error=REFUSED))]

    def publish(self, workers: Iterable[int], value: bytes) -> Replies:
        """Send an event to each of the given workers that has a rank in an epoch."""
        self._last += 1
        replies: Replies = []
        for listener in [self._listeners[worker] for worker in workers if worker in self._listeners]:
            listener.news = [*listener.news, (self._last, value)][-_MAX_EVENTS:]
            replies += self._deliver(listener)
        return replies

    def forget(self, worker: int) -> None:
        """Drop all requests and events of a worker whose process is gone."""
        self._coming.pop(worker, None)
        self._listeners.pop(worker, None)


class Exchanges(Protocol):
    """Operations on the store's data that the launcher's commands can use."""

    def fail(self, group: str, text: str) -> Replies: ...
    def set_first(self, name: str, value: bytes) -> Replies: ...


Command = Callable[[Exchanges], Replies]


class MembershipControl:
    """Launcher's interface to the membership server. Pass it to ``StoreServer``.

    The store's thread calls only ``serve`` and ``requested``. The launcher's thread calls all other public methods.
    """

    def __init__(self) -> None:
        self.requests = MembershipRequests()
        """Membership server. Only the store's thread uses it."""
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Descriptor that is readable when ``take`` would return entries."""
        self.requested = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._messages: collections.deque[WorkerMessage] = collections.deque()
        self._commands: collections.deque[Command] = collections.deque()

    # The methods below are called by the launcher's thread.

    def take(self) -> list[WorkerMessage]:
        """Return the messages from workers since the last call, in order."""
        _clear(self.fd)
        taken = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken

    def place(self, worker: int, value: bytes) -> None:
        """Let the store's thread send a waiting worker its rank in an epoch. See ``MembershipRequests.place``."""
        self._ask(lambda _: self.requests.place(worker, value))

    def refuse(self, worker: int, why: str) -> None:
        self._ask(lambda _: self.requests.refuse(worker, why))

    def publish(self, workers: Iterable[int], value: bytes) -> None:
        them = list(workers)
        self._ask(lambda _: self.requests.publish(them, value))

    def forget(self, worker: int) -> None:
        def forget(_: Exchanges) -> Replies:
            self.requests.forget(worker)
            return []

        self._ask(forget)

    def fail(self, group: str, why: str) -> None:
        """Make the group's pending exchanges fail, so that its ranks do not wait for lost ranks."""
        self._ask(lambda table: table.fail(group, why))

    def set(self, name: str, value: bytes) -> None:
        """Store a value under a name unless the name already has a value."""
        self._ask(lambda table: table.set_first(name, value))

    def close(self) -> None:
        """Close the queues' descriptors. Call this only after the server has been closed."""
        os.close(self.fd)
        os.close(self.requested)

    def _ask(self, command: Command) -> None:
        self._commands.append(command)
        os.eventfd_write(self.requested, 1)

    # The methods below are called by the store's thread.

    def serve(self, table: Exchanges) -> Replies:
        """Execute the launcher's commands on the store's data, and queue the workers' messages for the launcher."""
        _clear(self.requested)
        replies: Replies = []
        while self._commands:
            replies += self._commands.popleft()(table)
        if self.requests.outgoing:
            messages, self.requests.outgoing = self.requests.outgoing, []
            self._messages.extend(messages)
            os.eventfd_write(self.fd, 1)
        return replies


def _clear(fd: int) -> None:
    try:
        os.eventfd_read(fd)
    except BlockingIOError:
        pass
