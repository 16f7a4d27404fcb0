"""Functions that turn a process of a cluster manager, such as a Spark task, into an agent of the job.

The process connects to the launcher, starts the agent as a child process, and relays data between the launcher and the
agent until the job ends. If one of the three ends, a connection or pipe closes, so the other two notice immediately.
"""

from __future__ import annotations

import os
import platform
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from horovod._version import __version__
from horovod.common.contract.private_files import Secret
from horovod.common.network.interfaces import (
    Endpoint,
    machine_identity,
    network_identity,
    scan,
    source_address,
    to_listen,
    to_try,
)
from horovod.common.security.auth import AuthError, Connector, Place
from horovod.common.security.channel import HungUp, Talk
from horovod.runner.agent.messages import ByteWriter
from horovod.runner.remote import ssh
from horovod.runner.remote.arrived import ArrivedConnection

# Purpose code by which the handshake identifies connections from agents
PURPOSE = 101
# Maximum duration in seconds of the handshake, and of each message before the agent starts
HANDSHAKE_SECONDS = 10.0
_LIMIT = 1 << 16  # Maximum size in bytes of a message before the agent starts
_HEADER = struct.Struct(">I")


class ArrivalError(RuntimeError):
    """Error raised if a process cannot become an agent, because the launcher does not answer or rejects it."""


@dataclass(frozen=True)
class Ticket:
    """Ticket that permits a process to connect to the launcher as an agent.

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


class Reply(msgspec.Struct, frozen=True):
    """The launcher's answer to an `Arrival`.

    Attributes:
        refusal: Reason why the process is rejected, or an empty string if it is admitted.
    """

    refusal: str = ""


def place_of(number: int) -> Place:
    """Encode a process number as the `Place` that a peer sends in the handshake."""
    return Place(PURPOSE, 0, number + 1, 0)


def number_of(place: Place) -> int:
    """Decode the process number from the `Place` that a peer sends in the handshake."""
    return place.source - 1


def send(talk: Talk, message: Arrival | Reply) -> None:
    """Send an `Arrival` or an `Reply` to the other end."""
    body = msgspec.msgpack.encode(message)
    talk.write(_HEADER.pack(len(body)) + body)


def receive_arrival(talk: Talk) -> Arrival:
    """Receive an `Arrival`. Raises ValueError if the message is invalid."""
    return msgspec.msgpack.decode(_body(talk), type=Arrival)


def receive_reply(talk: Talk) -> Reply:
    """Receive an `Reply`. Raises ValueError if the message is invalid."""
    return msgspec.msgpack.decode(_body(talk), type=Reply)


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


# Maximum duration in seconds of one attempt to connect to one address
CONNECT_SECONDS = 5.0
# Seconds after which the process gives up trying to reach the launcher
ROUNDS_SECONDS = 2 * HANDSHAKE_SECONDS
# Minimum pause in seconds before all addresses are tried again. The maximum is twice as long.
PAUSE = 0.2
# If more bytes than this are queued in one direction, the relay stops reading.
QUEUE_LIMIT = 4 << 20
# Grace period in seconds for an agent that has lost its launcher to stop its workers
END_SECONDS = 15.0
READ_SIZE = 1 << 16


def become_agent(
    ticket: Ticket,
    number: int,
    *,
    label: str = "",
    environ: Mapping[str, str] | None = None,
    directory: str | None = None,
    python: str | None = None,
    started: Callable[[int], None] | None = None,
) -> None:
    """Connect to the launcher and run an agent until the job ends.

    Args:
        ticket: Ticket of the job.
        number: Number of this process. The launcher admits each number only once.
        label: Name of this process in messages, printed after the name of its host.
        environ: Environment of the workers. The default is the environment of this process.
        directory: Working directory of the workers. The default is the current directory.
        python: Python interpreter of the agent and the workers. The default is this process's interpreter.
        started: Function to call with the agent's process id, which is also its process group id. SIGUSR1 to this group
            warns the workers that the job will end soon.

    Raises:
        ArrivalError: If the launcher cannot be reached or rejects this process. The message contains the addresses.
        OSError: If the agent cannot be started.
    """
    connection = _arrive(ticket, number, label)
    try:
        agent = subprocess.Popen(
            ssh.agent_command(python or sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=None if environ is None else dict(environ),
            cwd=directory,
            # Protect the agent from signals to this process's group. The agent exits when its pipe closes.
            start_new_session=True,
            bufsize=0,
        )
        try:
            if started is not None:
                started(agent.pid)
            _pass_on(connection, agent)
        finally:
            _end(agent)
    finally:
        connection.kill()
        connection.end(time.monotonic())


def _arrive(ticket: Ticket, number: int, label: str) -> ArrivedConnection:
    """Connect to any of the launcher's addresses. Retry if the launcher is too busy to answer."""
    until = time.monotonic() + ROUNDS_SECONDS
    same = network_identity() == ticket.network
    mine = to_listen(scan(), "", alone=False)
    endpoints = to_try(mine, ticket.endpoints, same, source_address)
    while True:
        found, troubles, again = _go_round(endpoints, ticket, number, label)
        if found is not None:
            return found
        if not again or time.monotonic() >= until:
            break
        time.sleep(random.uniform(PAUSE, 2 * PAUSE))
    tried = "; ".join(troubles) or ", ".join(map(str, ticket.endpoints)) + ": on no network that this host is on"
    raise ArrivalError(f"host {socket.gethostname()} cannot reach the job's launcher ({tried}); it may have ended")


def _go_round(
    endpoints: Sequence[Endpoint], ticket: Ticket, number: int, label: str
) -> tuple[ArrivedConnection | None, list[str], bool]:
    """Try each address once.

    Returns:
        Connection or None, the error of each address, and True if a later attempt might succeed.
    """
    troubles, again = [], False
    for endpoint in endpoints:
        try:
            sock = socket.create_connection((endpoint.address, endpoint.port), CONNECT_SECONDS)
        except OSError as error:
            troubles.append(f"{endpoint}: {error.strerror or error}")
            continue
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _introduce(sock, ticket, number, label), [], False
        except (AuthError, OSError, ValueError) as error:
            sock.close()
            troubles.append(f"{endpoint}: {error}")
            again = again or isinstance(error, (HungUp, OSError))
        except BaseException:
            sock.close()
            raise
    return None, troubles, again


def _introduce(sock: socket.socket, ticket: Ticket, number: int, label: str) -> ArrivedConnection:
    talk = Talk(sock, accepts=False, seconds=HANDSHAKE_SECONDS)
    talk.prove(lambda key: Connector(key, place_of(number)), ticket.token)
    here = machine_identity(shared=True)
    send(talk, Arrival(__version__, platform.python_version(), socket.gethostname(), here, label))
    refusal = receive_reply(talk).refusal
    if refusal:
        raise ArrivalError(f"the launcher refuses this process: {refusal}")
    return ArrivedConnection(sock, talk.channel, talk.rest)


def _pass_on(connection: ArrivedConnection, agent: subprocess.Popen[bytes]) -> None:
    """Relay data until the agent's last message is sent, or until the launcher has read nothing for END_SECONDS.

    If the launcher is lost, wait until the agent has exited.
    """
    assert agent.stdin is not None
    assert agent.stdout is not None
    requests, reports = ByteWriter(agent.stdin.fileno()), agent.stdout.fileno()
    os.set_blocking(reports, False)
    # Time at which relaying stops, or None if there is no limit yet
    until: float | None = None
    agent_open = True  # True while the agent may still send messages
    while agent_open or (connection.pending and not connection.ended):
        if until is None and (connection.ended or not agent_open):
            until = time.monotonic() + END_SECONDS
        if until is not None and time.monotonic() >= until:
            return
        poll = select.poll()
        wanted = connection.events(listening=requests.pending < QUEUE_LIMIT) if not connection.ended else {}
        if agent_open and connection.pending < QUEUE_LIMIT:
            wanted[reports] = select.POLLIN
        if requests.pending:
            wanted[requests.fd] = select.POLLOUT
        for fd, event in wanted.items():
            poll.register(fd, event)
        poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000 + 1)
        if not connection.ended:
            left = connection.pending
            connection.flush()
            if not agent_open and connection.pending < left:
                until = None
            requests.write(connection.read())
        requests.flush()
        if connection.ended and not requests.pending and not agent.stdin.closed:
            requests.broken = True
            agent.stdin.close()  # When its stdin closes, the agent stops all its workers.
        if agent_open and connection.pending < QUEUE_LIMIT:
            agent_open = _report(connection, reports)


def _report(connection: ArrivedConnection, reports: int) -> bool:
    try:
        data = os.read(reports, READ_SIZE)
    except BlockingIOError:
        return True
    connection.write(data)
    return bool(data)


def _end(agent: subprocess.Popen[bytes]) -> None:
    for pipe in (agent.stdin, agent.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()
    try:
        agent.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
