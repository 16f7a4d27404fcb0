"""How a process that a cluster's manager has started becomes an agent: it connects to the launcher, starts the agent as
a child, and passes on what the two say to each other until the job ends. Whichever of the three ends first, the others
notice at once: a connection or a pipe closes.
"""

from __future__ import annotations

import os
import platform
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from horovod._version import __version__
from horovod.common.network.endpoints import Endpoint, to_listen, to_try
from horovod.common.network.interfaces import machine_identity, network_identity, scan, source_address
from horovod.common.security.auth import AuthError, Connector
from horovod.common.security.channel import HungUp, Talk
from horovod.runner.cluster import ticket as tickets
from horovod.runner.cluster.ticket import Arrival, ArrivalError, Ticket
from horovod.runner.protocol.messages import ByteWriter
from horovod.runner.reach import ssh
from horovod.runner.reach.arrived import ArrivedConnection

CONNECT_SECONDS = 5.0  # for each address
ROUNDS_SECONDS = 2 * tickets.SECONDS  # after which no other round of the addresses begins
PAUSE = 0.2  # s between two of them, at least; at most twice as long
QUEUE_LIMIT = 4 << 20  # bytes on their way in one direction, beyond which no more is taken
END_SECONDS = 15.0  # for an agent whose launcher is gone: it ends its workers, SIGTERM first
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
    """Returns when the job has ended. `number`: of this process among those with the ticket; one is let in once.

    `label`: what messages call it beside its host; `environ` (default: this process's), `directory` (default: the
    present one) and `python` (default: this one) are those of the workers that the agent starts. `started` is given the
    agent's process id, which is that of a group of its own: SIGUSR1 to the group warns the workers of the end.

    Raises ArrivalError saying why it cannot be, naming all addresses of the launcher that were tried; OSError when the
    agent cannot be started.
    """
    connection = _arrive(ticket, number, label)
    try:
        agent = subprocess.Popen(
            ssh.agent_command(python or sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=None if environ is None else dict(environ),
            cwd=directory,
            start_new_session=True,  # what the manager sends to our group is not for it; it ends when its pipe closes
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
    """Goes round the launcher's addresses, again and again while one of them hangs up or is slow: very many may come at
    once."""
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
    """A connection, or what was in its way, and whether it may be another time."""
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
    talk = Talk(sock, accepts=False, seconds=tickets.SECONDS)
    talk.prove(lambda key: Connector(key, tickets.place_of(number)), ticket.token)
    here = machine_identity(shared=True)
    tickets.say(talk, Arrival(__version__, platform.python_version(), socket.gethostname(), here, label))
    refusal = tickets.hear_answer(talk).refusal
    if refusal:
        raise ArrivalError(f"the launcher refuses this process: {refusal}")
    return ArrivedConnection(sock, talk.channel, talk.rest)


def _pass_on(connection: ArrivedConnection, agent: subprocess.Popen[bytes]) -> None:
    """Until the agent has said its last word, and that is sent, for as long as the launcher takes some of it. Without a
    launcher, until the agent has ended."""
    assert agent.stdin is not None
    assert agent.stdout is not None
    requests, reports = ByteWriter(agent.stdin.fileno()), agent.stdout.fileno()
    os.set_blocking(reports, False)
    until: float | None = None  # when we give up
    says = True  # does the agent say more?
    while says or (connection.pending and not connection.ended):
        if until is None and (connection.ended or not says):
            until = time.monotonic() + END_SECONDS
        if until is not None and time.monotonic() >= until:
            return
        poll = select.poll()
        wanted = connection.events(listening=requests.pending < QUEUE_LIMIT) if not connection.ended else {}
        if says and connection.pending < QUEUE_LIMIT:
            wanted[reports] = select.POLLIN
        if requests.pending:
            wanted[requests.fd] = select.POLLOUT
        for fd, event in wanted.items():
            poll.register(fd, event)
        poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000 + 1)
        if not connection.ended:
            left = connection.pending
            connection.flush()
            if not says and connection.pending < left:
                until = None
            requests.write(connection.read())
        requests.flush()
        if connection.ended and not requests.pending and not agent.stdin.closed:
            requests.broken = True
            agent.stdin.close()  # on which it ends everything
        if says and connection.pending < QUEUE_LIMIT:
            says = _report(connection, reports)


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
