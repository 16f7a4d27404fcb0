"""Ticket with which a process connects to the launcher, and the messages that precede the agent's own."""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass, field

import msgspec

from horovod._version import __version__
from horovod.common.contract.private_files import Secret
from horovod.common.network.interfaces import Endpoint
from horovod.common.security.auth import Place
from horovod.common.security.channel import Talk

PURPOSE = 101  # identifies these connections in the handshake
SECONDS = 10.0  # time limit for everything that precedes the agent's messages
_LIMIT = 1 << 16  # maximum bytes of a message
_HEADER = struct.Struct(">I")


class ArrivalError(RuntimeError):
    """A process cannot become an agent: the launcher does not answer, or refuses it."""


@dataclass(frozen=True)
class Ticket:
    """Permission to connect as an agent, sent with the closure to the processes that a cluster manager starts.

    Its holder may be admitted as one of these while the launcher waits for them. It grants nothing else and does not
    contain the job's key.

    Attributes:
        endpoints: Addresses of the launcher.
        network: Network identity of the launcher; only its own processes can use the loopback addresses.
        token: 32 bytes, unique to this job.
    """

    endpoints: tuple[Endpoint, ...]
    network: str
    token: Secret = field(repr=False)

    def __reduce__(self) -> tuple[type[Ticket], tuple[tuple[Endpoint, ...], str, Secret]]:
        return Ticket, (self.endpoints, self.network, self.token)


class Arrival(msgspec.Struct, frozen=True):
    """First message of a process that connects.

    Attributes:
        version: Version of horovod.
        python: Version of Python.
        hostname: Name of its host.
        machine: Identity of its machine, equal for processes that can share memory.
        label: Name of the process in messages, after its host.
    """

    version: str
    python: str
    hostname: str
    machine: str
    label: str


class Answer(msgspec.Struct, frozen=True):
    """Answer to an `Arrival`. `refusal` is the reason; empty if the process is admitted."""

    refusal: str = ""


def place_of(number: int) -> Place:
    """Return the `Place` in the handshake of the process with this number."""
    return Place(PURPOSE, 0, number + 1, 0)


def number_of(place: Place) -> int:
    """Return the number of the process in this handshake."""
    return place.source - 1


def say(talk: Talk, message: Arrival | Answer) -> None:
    """Send an `Arrival` or an `Answer`."""
    body = msgspec.msgpack.encode(message)
    talk.write(_HEADER.pack(len(body)) + body)


def hear_arrival(talk: Talk) -> Arrival:
    """Receive an `Arrival`. Raises ValueError for an invalid message."""
    return msgspec.msgpack.decode(_body(talk), type=Arrival)


def hear_answer(talk: Talk) -> Answer:
    """Receive an `Answer`. Raises ValueError for an invalid message."""
    return msgspec.msgpack.decode(_body(talk), type=Answer)


def _body(talk: Talk) -> bytes:
    (length,) = _HEADER.unpack(talk.read(_HEADER.size))
    if length > _LIMIT:
        raise ValueError(f"a message must have at most {_LIMIT} bytes, got {length}")
    return talk.read(length)


def judge(arrival: Arrival) -> str:
    """Return why this process cannot be part of a job of this launcher, or an empty string. Pure."""
    ours, theirs = platform.python_version(), arrival.python
    if arrival.version != __version__:
        return f"it has horovod {arrival.version}, the launcher {__version__}; install the same version on both"
    if ours.split(".")[:2] != theirs.split(".")[:2]:
        return f"it runs Python {theirs}, the launcher {ours}; functions travel between equal minor versions only"
    return ""
