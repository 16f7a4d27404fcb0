"""Ticket with which a process connects to the launcher, and messages to exchange before it becomes an agent."""

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

PURPOSE = 101  # The handshake marks connections of agents with this number.
SECONDS = 10.0  # Time limit for the handshake and for the messages of this module (s).
_LIMIT = 1 << 16  # Maximum size of a message (bytes).
_HEADER = struct.Struct(">I")


class ArrivalError(RuntimeError):
    """Error of a process that cannot become an agent, because the launcher does not answer or refuses it."""


@dataclass(frozen=True)
class Ticket:
    """Permission to connect to the launcher as an agent.

    The cluster manager sends the ticket to the processes as a part of the serialized function. The ticket grants
    nothing else, and does not contain the job's key.

    Attributes:
        endpoints: Addresses of the launcher.
        network: Network identity of the launcher. Only processes with the same identity can use its loopback addresses.
        token: 32 bytes, unique to this job.
    """

    endpoints: tuple[Endpoint, ...]
    network: str
    token: Secret = field(repr=False)

    def __reduce__(self) -> tuple[type[Ticket], tuple[tuple[Endpoint, ...], str, Secret]]:
        return Ticket, (self.endpoints, self.network, self.token)


class Arrival(msgspec.Struct, frozen=True):
    """First message that a connecting process sends.

    Attributes:
        version: Version of horovod.
        python: Version of Python.
        hostname: Name of the process's host.
        machine: Identity of the machine. It is equal for processes that can share memory.
        label: Name of the process in messages, printed after the name of its host.
    """

    version: str
    python: str
    hostname: str
    machine: str
    label: str


class Answer(msgspec.Struct, frozen=True):
    """Answer of the launcher to an `Arrival`.

    Attributes:
        refusal: Reason why the process is refused. Empty if it is admitted.
    """

    refusal: str = ""


def place_of(number: int) -> Place:
    """Encode a process number as a handshake `Place`."""
    return Place(PURPOSE, 0, number + 1, 0)


def number_of(place: Place) -> int:
    """Decode the process number from a handshake `Place`."""
    return place.source - 1


def say(talk: Talk, message: Arrival | Answer) -> None:
    """Send an `Arrival` or an `Answer` to the other end."""
    body = msgspec.msgpack.encode(message)
    talk.write(_HEADER.pack(len(body)) + body)


def hear_arrival(talk: Talk) -> Arrival:
    """Receive an `Arrival`. Raises ValueError if the message is invalid."""
    return msgspec.msgpack.decode(_body(talk), type=Arrival)


def hear_answer(talk: Talk) -> Answer:
    """Receive an `Answer`. Raises ValueError if the message is invalid."""
    return msgspec.msgpack.decode(_body(talk), type=Answer)


def _body(talk: Talk) -> bytes:
    (length,) = _HEADER.unpack(talk.read(_HEADER.size))
    if length > _LIMIT:
        raise ValueError(f"a message must have at most {_LIMIT} bytes, got {length}")
    return talk.read(length)


def judge(arrival: Arrival) -> str:
    """Return the reason why this process cannot join a job of this launcher, or an empty string."""
    ours, theirs = platform.python_version(), arrival.python
    if arrival.version != __version__:
        return f"it has horovod {arrival.version}, the launcher {__version__}; install the same version on both"
    if ours.split(".")[:2] != theirs.split(".")[:2]:
        return f"it runs Python {theirs}, the launcher {ours}; functions travel between equal minor versions only"
    return ""
