"""Ticket with which a process connects to the launcher, and the messages before it becomes an agent."""

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

PURPOSE = 101  # Value that marks these connections in the handshake.
SECONDS = 10.0  # Time limit in seconds for the handshake and the messages of this module.
_LIMIT = 1 << 16  # Maximum size of a message in bytes.
_HEADER = struct.Struct(">I")


class ArrivalError(RuntimeError):
    """Error of a process that cannot become an agent: the launcher does not answer, or refuses it."""


@dataclass(frozen=True)
class Ticket:
    """Permission to connect as an agent. The closure carries it to the processes that a cluster manager starts.

    A process with the ticket can be admitted while the launcher waits for processes. The ticket grants nothing else and
    does not contain the job's key.

    Attributes:
        endpoints: Addresses of the launcher.
        network: Network identity of the launcher. Only processes with the same one can use its loopback addresses.
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
        machine: Identity of the machine. Processes that can share memory have equal ones.
        label: Name of the process in messages, printed after the name of its host.
    """

    version: str
    python: str
    hostname: str
    machine: str
    label: str


class Answer(msgspec.Struct, frozen=True):
    """Answer to an `Arrival`. `refusal` says why the process is refused; it is empty if the process is admitted."""

    refusal: str = ""


def place_of(number: int) -> Place:
    """Return the handshake `Place` that encodes this process number."""
    return Place(PURPOSE, 0, number + 1, 0)


def number_of(place: Place) -> int:
    """Return the process number that this handshake `Place` encodes."""
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
    """Return why this process cannot join a job of this launcher, or an empty string."""
    ours, theirs = platform.python_version(), arrival.python
    if arrival.version != __version__:
        return f"it has horovod {arrival.version}, the launcher {__version__}; install the same version on both"
    if ours.split(".")[:2] != theirs.split(".")[:2]:
        return f"it runs Python {theirs}, the launcher {ours}; functions travel between equal minor versions only"
    return ""
