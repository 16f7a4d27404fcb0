"""Where workers of an elastic job wait for what the launcher decides: for a place in the next epoch, and for news.
Pure, as ``table``, a part of which this is.

    worker --Come--> waits ......... place, or a refusal
           --News--> waits ......... all news after the one that it knows
           --Heard-> at once
    the launcher reads what was said (``told``), and answers by ``place``, ``refuse``, ``publish``
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from horovod.common.store.messages import Come, Heard, News, Reply

REFUSED = "refused"
"""The error of a reply that is a refusal; its text is the reply's value."""
_KEPT = 64  # news for a worker that does not ask for them

Replies = list[tuple[bytes, Reply]]


@dataclass(frozen=True)
class Came:
    """A worker waits for a place. ``epoch``: the one that it was in, 0: none; ``lost``: workers of it that it has lost;
    ``facts``: what it says of itself; ``in_sync``: its state has missed nothing; ``holds``: it is that of the
    training, None: not said."""

    worker: int
    epoch: int
    lost: tuple[int, ...]
    facts: bytes
    in_sync: bool = False
    holds: bool | None = None


@dataclass(frozen=True)
class HasHeard:
    """A worker has noticed that the epoch is over, and is not back yet; nor will be, where ``blame`` says what its
    program does wrong."""

    worker: int
    epoch: int
    lost: tuple[int, ...]
    blame: str = ""


@dataclass(frozen=True)
class Met:
    """All ranks of a group have met. ``silent``: none of them had anything to say, as in the exchange at the end of
    init, where a value is the reason why a rank is not ready."""

    group: str
    round: int
    silent: bool


Told = Came | HasHeard | Met


@dataclass
class _Listener:
    """What was published for a worker, and where it waits for it."""

    news: list[tuple[int, bytes]] = field(default_factory=list)
    waiting: tuple[bytes, News] | None = None


class Desk:
    """``told``: what the launcher has not read yet, in order; whoever reads it empties it."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self._coming: dict[int, tuple[bytes, Come]] = {}  # by worker
        self._listeners: dict[int, _Listener] = {}
        self._last = 0  # number of the last news

    def handle(self, client: bytes, request: Come | Heard | News) -> Replies:
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
        """The table says so."""
        self.told.append(Met(group, number, silent))

    # What the launcher answers

    def place(self, worker: int, value: bytes) -> Replies:
        """The worker's place in an epoch, of which there may be news from now on. Nothing if it does not wait: its
        process is gone, which is told elsewhere."""
        waiting = self._coming.pop(worker, None)
        if waiting is None:
            return []
        self._listeners.setdefault(worker, _Listener())
        return [(waiting[0], Reply(waiting[1].id, [value]))]

    def refuse(self, worker: int, why: str) -> Replies:
        """It gets no place any more."""
        waiting = self._coming.pop(worker, None)
        return [] if waiting is None else [(waiting[0], Reply(waiting[1].id, [why.encode()], error=REFUSED))]

    def publish(self, workers: Iterable[int], value: bytes) -> Replies:
        """News for those of these workers that are there."""
        self._last += 1
        replies: Replies = []
        for listener in [self._listeners[worker] for worker in workers if worker in self._listeners]:
            listener.news = [*listener.news, (self._last, value)][-_KEPT:]
            replies += self._deliver(listener)
        return replies

    def forget(self, worker: int) -> None:
        """Its process is gone."""
        self._coming.pop(worker, None)
        self._listeners.pop(worker, None)
