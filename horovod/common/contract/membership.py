"""What the launcher of an elastic job and its workers say to each other of membership; how it travels: ``store.desk``.

A worker is a process, by a number that no other process of the job has. It says that it comes
(``store.messages.Come``), and that it has heard that its epoch is over (``Heard``). It is told its place in the next
epoch, and news.
"""

import msgspec

from horovod.common.contract.host_updates import HostUpdateResult


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A worker's place in an epoch. ``workers``: their numbers by rank. ``most``: the most there may ever be, None: any
    number. ``in_sync``: all members have said that their states are as they were brought together last (``Come``)."""

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
    """What a worker says of itself when it comes for the first time. ``python``: "3.11"; ``code``: a digest of the
    program's main file, empty without one."""

    version: str
    python: str
    program: str = ""
    code: str = ""


class Over(msgspec.Struct, frozen=True, tag="over"):
    """The epoch is over: who connects gives up, who trains lets its operations fail. ``lost``: the workers that are
    gone for certain; empty where some have left it, and what was agreed before may still end well."""

    epoch: int
    why: str
    lost: list[int] = []


class Updated(msgspec.Struct, frozen=True, tag="updated"):
    """Others could join the epoch, or some are to leave. ``timestamp``: s, larger than that of all news before."""

    epoch: int
    timestamp: float
    update: int

    @property
    def result(self) -> HostUpdateResult:
        return HostUpdateResult(self.update)


News = Over | Updated
_places: msgspec.msgpack.Decoder[Place] = msgspec.msgpack.Decoder(Place)
_facts: msgspec.msgpack.Decoder[Facts] = msgspec.msgpack.Decoder(Facts)
_news: msgspec.msgpack.Decoder[News] = msgspec.msgpack.Decoder(News)


def encode(message: Place | Facts | News) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_place(data: bytes) -> Place:
    """Raises ValueError for what is none."""
    return _places.decode(data)


def decode_facts(data: bytes) -> Facts:
    """Raises ValueError for what are none."""
    return _facts.decode(data)


def decode_news(data: bytes) -> News:
    """Raises ValueError for what is none."""
    return _news.decode(data)
