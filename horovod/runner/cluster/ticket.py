"""What a process needs to call home, and what the two ends say to each other before the agent's conversation begins."""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass, field

import msgspec

from horovod._version import __version__
from horovod.common.contract.secret import Secret
from horovod.common.network.endpoints import Endpoint
from horovod.common.security.auth import Place
from horovod.common.security.channel import Talk

PURPOSE = 101  # of such a connection, in the handshake
SECONDS = 10.0  # for all that is said before an agent's own words
_LIMIT = 1 << 16  # bytes of a message
_HEADER = struct.Struct(">I")


class ArrivalError(RuntimeError):
    """A process that was to become an agent cannot: the launcher does not answer, or does not want it."""


@dataclass(frozen=True)
class Ticket:
    """Travels with the closure to the processes that a cluster's manager starts. Who has it can be let in as one of
    them, while they are awaited; it opens nothing else, and the job's key is not in it.

    `token`: 32 bytes, of this job alone. `network`: of the launcher, whose loopback only its own processes reach.
    """

    endpoints: tuple[Endpoint, ...]
    network: str
    token: Secret = field(repr=False)

    def __reduce__(self) -> tuple[type[Ticket], tuple[tuple[Endpoint, ...], str, Secret]]:
        return Ticket, (self.endpoints, self.network, self.token)


class Arrival(msgspec.Struct, frozen=True):
    """The first words of who arrives. `label`: what it is called, after its host's name. `machine`: equal for those
    that can share memory."""

    version: str
    python: str
    hostname: str
    machine: str
    label: str


class Answer(msgspec.Struct, frozen=True):
    """`refusal`: why it is not let in; empty: it is."""

    refusal: str = ""


def place_of(number: int) -> Place:
    """Of a connection by the process of this number, in the handshake."""
    return Place(PURPOSE, 0, number + 1, 0)


def number_of(place: Place) -> int:
    return place.source - 1


def say(talk: Talk, message: Arrival | Answer) -> None:
    body = msgspec.msgpack.encode(message)
    talk.write(_HEADER.pack(len(body)) + body)


def hear_arrival(talk: Talk) -> Arrival:
    """Raises ValueError for what is no such message."""
    return msgspec.msgpack.decode(_body(talk), type=Arrival)


def hear_answer(talk: Talk) -> Answer:
    """Raises ValueError for what is no such message."""
    return msgspec.msgpack.decode(_body(talk), type=Answer)


def _body(talk: Talk) -> bytes:
    (length,) = _HEADER.unpack(talk.read(_HEADER.size))
    if length > _LIMIT:
        raise ValueError(f"a message of {length} bytes, accepted are {_LIMIT}")
    return talk.read(length)


def judge(arrival: Arrival) -> str:
    """Why this process cannot be part of a job of this launcher; empty: it can. Pure."""
    ours, theirs = platform.python_version(), arrival.python
    if arrival.version != __version__:
        return f"it has horovod {arrival.version}, the launcher {__version__}; install the same version on both"
    if ours.split(".")[:2] != theirs.split(".")[:2]:
        return f"it runs Python {theirs}, the launcher {ours}; functions travel between equal minor versions only"
    return ""
