"""State, limits and request handling of the store, without sockets or clocks.

All clients are members of the job, so the limits are not a defense against attacks. A faulty member gets an error
instead of exhausting the launcher's memory.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

from horovod.common.store.membership import MembershipRequests
from horovod.common.store.messages import MAX_REPLY_BYTES, Exchange, Get, Join, Leave, News, Reply, Request, Set, pack

MAX_TOTAL_BYTES = 256 << 20
"""Maximum bytes of all values and their names, including those of incomplete exchanges."""
MAX_WAITING = 256
"""Maximum number of waiting requests per client. ``StoreClient`` makes only one request at a time."""
_PER_ENTRY = 256  # approximate memory overhead of a request in bytes, without names and value
_PER_NAME = 64
_FAILED = 64  # maximum number of failed groups to remember for late requests


@dataclass
class _Waiting:
    """Request for values, some of which are still missing."""

    client: bytes
    request: Get
    deadline: float


@dataclass
class _Member:
    client: bytes
    request: Exchange
    deadline: float


@dataclass
class _Round:
    size: int
    members: dict[int, _Member] = field(default_factory=dict)
    gave_up: set[int] = field(default_factory=set)
    """Ranks that have timed out and not called again."""


Waiting = dict[str, tuple[int, frozenset[int]]]
"""Number of ranks of each group, and the ranks that are waiting for the group's other ranks."""


class Table:
    """Table of values and waiting requests. Methods return the replies to send, as (client, reply) pairs."""

    def __init__(self, membership: MembershipRequests | None = None) -> None:
        """Create an empty table.

        ``membership`` handles the membership requests of an elastic job. It is None in other jobs.
        """
        self._membership = membership
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._waiting: list[_Waiting] = []
        self._rounds: dict[str, _Round] = {}
        # Reason why a group has failed, for each failed group.
        self._failed: dict[str, str] = {}
        self.completed = 0
        """Number of completed rounds, which is also the number of the last one."""
        self._published = True
        self.waiting: Waiting = {}
        """Waiting ranks as of the last ``publish``. Replaced, never modified, so that other threads can read it."""
        # Number of waiting requests of each client.
        self._waits_of: Counter[bytes] = Counter()

    def publish(self) -> None:
        """Refresh ``waiting``, which other threads read."""
        if not self._published:
            self.waiting = {
                group: (current.size, frozenset(current.members)) for group, current in self._rounds.items()
            }
            self._published = True

    def handle(self, client: bytes, request: Request, now: float) -> list[tuple[bytes, Reply]]:
        """Handle a client's request at time ``now``. The reply may be returned by a later call instead."""
        if self._bytes + _cost(request) > MAX_TOTAL_BYTES:
            return [(client, Reply(request.id, error=f"the store is full: it holds {MAX_TOTAL_BYTES} bytes at most"))]
        if not isinstance(request, Set) and self._waits_of[client] >= MAX_WAITING:
            text = f"{MAX_WAITING} requests of this process wait already, which is the most that are accepted"
            return [(client, Reply(request.id, error=text))]
        if isinstance(request, Set):
            return self._set(client, request)
        if isinstance(request, Get):
            return self._get(client, request, now)
        if isinstance(request, (Join, Leave, News)):
            if self._membership is None:
                return [(client, Reply(request.id, error="the members of this job do not change"))]
            return self._membership.handle(client, request)
        return self._exchange(client, request, now)

    def _set(self, client: bytes, request: Set) -> list[tuple[bytes, Reply]]:
        earlier = self._values.get(request.name)
        if request.first and earlier is not None:
            return [(client, Reply(request.id, [earlier]))]
        self._bytes += _cost(request)
        if earlier is not None:
            self._bytes -= _cost(Set(0, request.name, earlier))
        self._values[request.name] = request.value
        replies = [(client, Reply(request.id, [request.value] if request.first else []))]
        for waiting in [w for w in self._waiting if request.name in w.request.names and not self._missing(w.request)]:
            self._waiting.remove(waiting)
            self._leave(waiting.client, waiting.request)
            replies.append((waiting.client, self._values_of(waiting.request)))
        return replies

    def set_first(self, name: str, value: bytes) -> list[tuple[bytes, Reply]]:
        """Store the launcher's value unless the name already has one. Return replies to the clients waiting for it."""
        return [(client, reply) for client, reply in self._set(b"", Set(0, name, value, first=True)) if client]

    def _get(self, client: bytes, request: Get, now: float) -> list[tuple[bytes, Reply]]:
        if not self._missing(request):
            return [(client, self._values_of(request))]
        self._waiting.append(_Waiting(client, request, now + request.timeout))
        self._wait(client, request)
        return []

    def _missing(self, request: Get) -> list[str]:
        return [name for name in request.names if name not in self._values]

    def _values_of(self, request: Get) -> Reply:
        values = [self._values[name] for name in request.names]
        if sum(map(len, values)) > MAX_REPLY_BYTES:
            return Reply(request.id, error=f"these values have more than the accepted {MAX_REPLY_BYTES} bytes together")
        return Reply(request.id, values)

    def _exchange(self, client: bytes, request: Exchange, now: float) -> list[tuple[bytes, Reply]]:
        if request.group in self._failed:
            return [(client, Reply(request.id, error=self._failed[request.group]))]
        current = self._rounds.get(request.group) or _Round(request.size)
        if request.size != current.size or request.rank >= request.size:
            others = f"ranks {_list(current.members)} said {current.size}" if current.members else "which is too few"
            text = f"rank {request.rank} says that the job has {request.size} ranks, {others}"
            return [(client, Reply(request.id, error=text))]
        self._published = False
        self._rounds[request.group] = current
        replies = []
        earlier = current.members.get(request.rank)
        if earlier is not None:
            text = f"another process joined as rank {request.rank}"
            replies.append((earlier.client, Reply(earlier.request.id, error=text)))
            self._leave(earlier.client, earlier.request)
        current.gave_up.discard(request.rank)
        current.members[request.rank] = _Member(client, request, now + request.timeout)
        self._wait(client, request)
        if len(current.members) < current.size:
            return replies
        del self._rounds[request.group]
        self.completed += 1
        if self._membership is not None:
            silent = not any(member.request.value for member in current.members.values())
            self._membership.met(request.group, self.completed, silent)
        return replies + self._complete(current)

    def fail(self, group: str, text: str) -> list[tuple[bytes, Reply]]:
        """Make current and future exchanges of a group fail because one of its ranks is gone."""
        self._failed.setdefault(group, text)
        if len(self._failed) > _FAILED:
            del self._failed[next(iter(self._failed))]
        current = self._rounds.pop(group, None)
        replies = []
        for member in current.members.values() if current is not None else ():
            self._published = False
            self._leave(member.client, member.request)
            replies.append((member.client, Reply(member.request.id, error=text)))
        return replies

    def _complete(self, current: _Round) -> list[tuple[bytes, Reply]]:
        members = [current.members[rank] for rank in range(current.size)]
        packed = pack([member.request.value for member in members])
        holders: dict[str, int] = {}  # first rank of each node, which passes all values on to the node's other ranks
        replies = []
        for rank, member in enumerate(members):
            node = member.request.node
            holder = holders.setdefault(node, rank) if node else rank
            self._leave(member.client, member.request)
            reply = Reply(member.request.id, round=self.completed, holder=holder)
            if holder == rank:
                reply.packed = packed
            else:
                reply.values = [members[holder].request.value]
            replies.append((member.client, reply))
        return replies

    def _wait(self, client: bytes, request: Request) -> None:
        self._bytes += _cost(request)
        self._waits_of[client] += 1

    def _leave(self, client: bytes, request: Request) -> None:
        self._bytes -= _cost(request)
        self._waits_of[client] -= 1
        if not self._waits_of[client]:
            del self._waits_of[client]

    def expire(self, now: float) -> list[tuple[bytes, Reply]]:
        """Remove requests whose deadline has passed, and return timeout replies to them."""
        replies = []
        for waiting in [w for w in self._waiting if w.deadline <= now]:
            self._waiting.remove(waiting)
            self._leave(waiting.client, waiting.request)
            missing = self._missing(waiting.request)[:64]
            replies.append((waiting.client, Reply(waiting.request.id, error="timeout", missing=missing)))
        for group, current in list(self._rounds.items()):
            came = current.members.keys() | current.gave_up
            missing = [str(rank) for rank in range(current.size) if rank not in came]
            gave_up = [str(rank) for rank in sorted(current.gave_up)]
            for rank, member in [(r, m) for r, m in current.members.items() if m.deadline <= now]:
                self._published = False
                del current.members[rank]
                current.gave_up.add(rank)
                self._leave(member.client, member.request)
                reply = Reply(member.request.id, error="timeout", missing=missing, gave_up=gave_up)
                replies.append((member.client, reply))
            if not current.members:
                del self._rounds[group]
        return replies

    def next_deadline(self) -> float:
        """Return the time at which to call ``expire`` next, or infinity if no request is waiting."""
        deadlines = [w.deadline for w in self._waiting]
        deadlines += [m.deadline for current in self._rounds.values() for m in current.members.values()]
        return min(deadlines, default=math.inf)


def _list(ranks: dict[int, _Member]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _cost(request: Request) -> int:
    """Return the approximate memory in bytes that a request occupies."""
    if isinstance(request, (Join, Leave, News)):
        return _PER_ENTRY
    if isinstance(request, Get):
        return _PER_ENTRY + sum(_PER_NAME + len(name) for name in request.names)
    return _PER_ENTRY + len(request.name if isinstance(request, Set) else request.group) + len(request.value)
