"""Messages about membership between the launcher of an elastic job and its workers; ``store.desk`` transfers them.

Each process of the job has a unique worker number. A worker tells the launcher that it wants to join
(``store.messages.Come``), and that it has learned of the end of its epoch (``Heard``). The launcher sends its place in
the next epoch, and news such as changes of the hosts.
"""

from enum import IntFlag

import msgspec


class HostUpdateResult(IntFlag):
    """Change of the hosts of an elastic job, as told by the launcher."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Place of a worker in an epoch.

    Attributes:
        workers: Numbers of the workers, by rank.
        most: Maximum number of workers ever; None: unlimited.
        in_sync: True if all members have reported that their states are unchanged since the last sync (``Come``).
    """

    epoch: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    workers: list[int]
    most: int | None = None
    in_sync: bool = False


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """Properties that a worker reports when it first joins.

    Attributes:
        version: Version of horovod.
        python: Version of Python, such as "3.11".
        program: Name of the program.
        code: Digest of the program's main file; empty without one.
    """

    version: str
    python: str
    program: str = ""
    code: str = ""


class Over(msgspec.Struct, frozen=True, tag="over"):
    """End of an epoch: workers that are connecting give up, and the operations of those that train fail.

    Attributes:
        lost: Workers that are certainly gone. Empty if workers have only left, so that operations agreed on before may
            still succeed.
    """

    epoch: int
    why: str
    lost: list[int] = []


class Updated(msgspec.Struct, frozen=True, tag="updated"):
    """Host update: other workers could join the epoch, or some must leave. ``timestamp``: seconds; always increases."""

    epoch: int
    timestamp: float
    update: int

    @property
    def result(self) -> HostUpdateResult:
        """Kind of the update, as an enum value."""
        return HostUpdateResult(self.update)


News = Over | Updated
_places: msgspec.msgpack.Decoder[Place] = msgspec.msgpack.Decoder(Place)
_facts: msgspec.msgpack.Decoder[Facts] = msgspec.msgpack.Decoder(Facts)
_news: msgspec.msgpack.Decoder[News] = msgspec.msgpack.Decoder(News)


def encode(message: Place | Facts | News) -> bytes:
    """Return the message encoded for transfer."""
    return msgspec.msgpack.encode(message)


def decode_place(data: bytes) -> Place:
    """Return the place. Raises ValueError if ``data`` is invalid."""
    return _places.decode(data)


def decode_facts(data: bytes) -> Facts:
    """Return the facts. Raises ValueError if ``data`` is invalid."""
    return _facts.decode(data)


def decode_news(data: bytes) -> News:
    """Return the news. Raises ValueError if ``data`` is invalid."""
    return _news.decode(data)
