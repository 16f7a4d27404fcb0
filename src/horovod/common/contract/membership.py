"""Membership messages that the launcher and the workers of an elastic job exchange (``store.membership``).

Each process of the job has a unique worker number. A worker asks the launcher to let it join the job
(``store.messages.Join``), and reports when its epoch has ended (``Leave``). The launcher sends each worker its ranks in
the next epoch, and events such as changes of the hosts.
"""

from enum import IntFlag

import msgspec


class HostUpdateResult(IntFlag):
    """Kind of host change in an elastic job, as reported by the launcher."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Assignment of a worker for an epoch: its rank, and the other workers.

    Attributes:
        workers: Numbers of the workers, by rank.
        max_size: Maximum number of workers over the job's lifetime. None means unlimited.
        in_sync: True if every member has reported (``Come``) that its state includes all changes since the last sync.
    """

    epoch: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    workers: list[int]
    max_size: int | None = None
    in_sync: bool = False


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """Properties that a worker reports when it first joins.

    Attributes:
        version: Version of horovod.
        python: Version of Python, such as "3.11".
        program: Name of the program.
        code: Digest of the program's main file. It is empty if there is none.
    """

    version: str
    python: str
    program: str = ""
    code: str = ""


class Over(msgspec.Struct, frozen=True, tag="over"):
    """Message that announces the end of an epoch.

    Workers that are connecting give up, and pending operations of training workers fail.

    Attributes:
        lost: Workers known to be gone. Empty if workers have only left. Operations that the ranks have already
            agreed on can then still succeed.
    """

    epoch: int
    why: str
    lost: list[int] = []


class Updated(msgspec.Struct, frozen=True, tag="updated"):
    """Message that the job can grow or must shrink. ``timestamp`` is in seconds and increases with each message."""

    epoch: int
    timestamp: float
    update: int

    @property
    def result(self) -> HostUpdateResult:
        """Kind of the host update, as an enum value."""
        return HostUpdateResult(self.update)


News = Over | Updated
_places: msgspec.msgpack.Decoder[Place] = msgspec.msgpack.Decoder(Place)
_facts: msgspec.msgpack.Decoder[Facts] = msgspec.msgpack.Decoder(Facts)
_news: msgspec.msgpack.Decoder[News] = msgspec.msgpack.Decoder(News)


def encode(message: Place | Facts | News) -> bytes:
    """Encode a message for transfer between launcher and worker."""
    return msgspec.msgpack.encode(message)


def decode_place(data: bytes) -> Place:
    """Decode the assignment (rank etc.) that the launcher sent to a worker. Raises ValueError if ``data`` is bad."""
    return _places.decode(data)


def decode_facts(data: bytes) -> Facts:
    """Decode the properties that a worker has reported. Raises ValueError if ``data`` is invalid."""
    return _facts.decode(data)


def decode_news(data: bytes) -> News:
    """Decode an event that the launcher has sent. Raises ValueError if ``data`` is invalid."""
    return _news.decode(data)
