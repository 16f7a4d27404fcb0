"""Server that accepts a cluster manager's processes as agents. Each process needs the job's ticket to connect."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from horovod.common.contract.private_files import Secret
from horovod.common.network.connecting import Listeners
from horovod.common.network.interfaces import network_identity, parse_ports, scan, to_listen
from horovod.common.security.auth import Acceptor, AuthError
from horovod.common.security.channel import Channel, Talk
from horovod.runner.cluster import task as tickets
from horovod.runner.cluster.task import Arrival, Reply, Ticket
from horovod.runner.plan.hosts import Machines
from horovod.runner.remote.arrived import ArrivedConnection

# Maximum number of unauthenticated connections. Other connections wait in the listen backlog.
_MAX_CONNECTIONS = 256
# Age in seconds after which an unauthenticated connection can be closed in favor of a new one
_TIME_OF_ITS_OWN = 2.0
_LOOK_AGAIN = 50  # Milliseconds between checks for whether a server at its limit can accept connections again
_BACKLOG = 1024
_END_SECONDS = 5.0
_LONGEST_POLL = 3600.0  # Longest single wait in seconds, because poll() accepts at most about 24 days


@dataclass(frozen=True)
class _Visit:
    thread: threading.Thread
    began: float


@dataclass(frozen=True)
class Arrived:
    """Process that the server has admitted.

    Attributes:
        number: Number of the process.
        name: Unique name, which the job uses as its host name.
        machine: Name of the machine on which the process runs.
        connection: Encrypted connection to the process.
    """

    number: int
    name: str
    machine: str
    connection: ArrivedConnection


class Gathering:
    """Server that admits processes, which then become agents. It listens in a separate thread.

    All methods except `fail` and `closed` must be called from the thread that runs the job. `fd` is readable when
    `take` has something to return.
    """

    def __init__(
        self, what: str = "process", nics: Sequence[str] = (), ports: str = "", token: bytes | None = None
    ) -> None:
        """Start listening for connections from processes.

        Args:
            what: Name for a process in messages, such as "Spark task".
            nics: Network interfaces to listen on. The default is all.
            ports: Ports to listen on, in the format of HOROVOD_PORT_RANGE.
            token: 32-byte token that the processes already have, or None to create a new one.

        Raises:
            ValueError: If an interface or port does not exist.
            AuthError: If this Python installation does not support encryption.
        """
        # If encryption is not supported, fail here, because a connection's thread cannot raise errors in the caller.
        Channel(accepts=True)
        self.what = what
        self._lock = threading.Lock()
        self._closed = False
        self._used: set[int] = set()  # Ids of the admitted processes; each process can connect only once
        self._machines = Machines()
        self._new: list[Arrived] = []
        self._refusals: list[str] = []
        self._trouble: BaseException | None = None
        self._visits: dict[socket.socket, _Visit] = {}  # Connections that are being authenticated, oldest first
        with contextlib.ExitStack() as undo:
            listeners = Listeners(to_listen(scan(), ",".join(nics), alone=False), _BACKLOG, parse_ports(ports))
            undo.callback(listeners.close)
            self._listeners = listeners
            token = token or secrets.token_bytes(32)
            self.ticket = Ticket(tuple(listeners.endpoints), network_identity(), Secret(token))
            self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self.fd)
            self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._stop)
            self._thread = threading.Thread(target=self._listen, name="horovod-gathering", daemon=True)
            self._thread.start()
            undo.pop_all()

    @property
    def closed(self) -> bool:
        """True if the server admits no more processes. Thread-safe."""
        with self._lock:
            return self._closed

    def fail(self, trouble: BaseException) -> None:
        """Record that no more processes will connect, and why. Thread-safe."""
        with self._lock:
            if self._trouble is None and not self._closed:
                self._trouble = trouble
                self._report_progress()

    def take(self) -> tuple[list[Arrived], list[str], BaseException | None]:
        """Return all events since the last call.

        Returns:
            Admitted processes, messages about rejected processes, and the error passed to `fail` or None.
        """
        with self._lock:
            if not self._closed:
                try:
                    os.eventfd_read(self.fd)
                except BlockingIOError:
                    pass
            new, self._new = self._new, []
            refusals, self._refusals = self._refusals, []
            return new, refusals, self._trouble

    def wait(self, count: int, seconds: float, advice: str | Callable[[], str]) -> list[Arrived]:
        """Wait until `count` processes are connected at the same time, and return them.

        Args:
            count: Number of processes.
            seconds: Time limit.
            advice: Advice for the error message, or a function that returns it.

        Raises:
            TimeoutError: If too few processes have connected in time.
            ArrivalError: If a process was rejected, for example because of its version of horovod.
            BaseException: If `fail` was called; the error that was passed to it.
        """
        until = time.monotonic() + seconds
        here: list[Arrived] = []
        while True:
            new, refusals, trouble = self.take()
            here = [each for each in here + new if not each.connection.closed]
            try:
                if refusals:
                    raise tickets.ArrivalError(refusals[0])
                if trouble is not None:
                    raise trouble
                if len(here) >= count:
                    return here
                remaining = until - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError(
                        self._late(count, here, seconds, advice if isinstance(advice, str) else advice())
                    )
            except BaseException:
                for each in here:
                    each.connection.kill()
                raise
            poll = select.poll()
            poll.register(self.fd, select.POLLIN)
            for each in here:
                poll.register(each.connection.fd, select.POLLRDHUP)
            poll.poll(min(remaining, _LONGEST_POLL) * 1000)

    def _late(self, count: int, here: Sequence[Arrived], seconds: float, advice: str) -> str:
        came = f" (there: {', '.join(each.name for each in here)})" if here else ""
        return (
            f"waited {seconds:g} s for {count} {self.what}s to start and call the launcher, {len(here)} have{came}. "
            f"{advice}"
        )

    def _listen(self) -> None:
        poll = select.poll()
        listeners = {one.fileno(): one for one in self._listeners.tcp}
        for fd in (self._stop, *listeners):
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._stop in ready:
                return
            for fd in ready:
                if not self._has_room():
                    self._pause()
                    continue
                try:
                    sock, _ = listeners[fd].accept()
                    self._begin(sock)
                # The peer has disconnected (OSError), or no more descriptors or threads are available.
                except (OSError, RuntimeError):
                    self._pause()

    def _pause(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        poll.poll(_LOOK_AGAIN)

    def _has_room(self) -> bool:
        """Return True if another connection can be accepted.

        At the limit, close the oldest unauthenticated connection to make room. Never close a connection younger than
        _TIME_OF_ITS_OWN seconds, because legitimate processes can connect in bursts.
        """
        with self._lock:
            if len(self._visits) >= _MAX_CONNECTIONS:
                oldest = next(iter(self._visits))
                if time.monotonic() - self._visits[oldest].began < _TIME_OF_ITS_OWN:
                    return False
                del self._visits[oldest]
                _shut(oldest)  # Only shut the socket down. The thread that serves the connection then closes it.
            return True

    def _begin(self, sock: socket.socket) -> None:
        visit = threading.Thread(target=self._visit, args=(sock,), name="horovod-arrival", daemon=True)
        with self._lock:
            self._visits[sock] = _Visit(visit, time.monotonic())
        try:
            visit.start()
        except RuntimeError:
            with self._lock:
                self._visits.pop(sock, None)
            sock.close()
            raise

    def _visit(self, sock: socket.socket) -> None:
        admitted = False
        try:
            admitted = self._admit(sock)
        except (AuthError, OSError, ValueError):  # Ignore a peer that fails to authenticate or disconnects.
            pass
        finally:
            with self._lock:
                self._visits.pop(sock, None)
                if not admitted:
                    sock.close()

    def _admit(self, sock: socket.socket) -> bool:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        talk = Talk(sock, accepts=True, seconds=tickets.HANDSHAKE_SECONDS)
        sides: list[Acceptor] = []

        def acceptor(key: bytes) -> Acceptor:
            sides.append(Acceptor(key, 0, 0))
            return sides[0]

        talk.prove(acceptor, self.ticket.token)
        if sides[0].place.purpose != tickets.PURPOSE:
            raise AuthError("it belongs to another job")
        number = tickets.number_of(sides[0].place)
        arrival = tickets.receive_arrival(talk)
        name = f"{arrival.hostname}, {arrival.label or f'{self.what} {number}'}"
        refusal = tickets.judge(arrival)
        with self._lock:
            if not refusal and number in self._used:
                refusal = f"{self.what} {number} connected twice; the second connection was refused"
            if refusal:
                self._refusals.append(f"{name}: {refusal}")
                self._report_progress()
            elif sock not in self._visits:
                return False
            else:  # Reset the connection's age, so that `_has_room` does not close it.
                self._visits[sock] = _Visit(self._visits.pop(sock).thread, time.monotonic())
                self._used.add(number)
        admitted = False
        try:
            tickets.send(talk, Reply(refusal))
            if not refusal:
                admitted = self._keep(sock, talk, number, name, arrival)
        finally:
            if not (admitted or refusal):  # The connection failed before admission, so the process may connect again.
                with self._lock:
                    self._used.discard(number)
        return admitted

    def _keep(self, sock: socket.socket, talk: Talk, number: int, name: str, arrival: Arrival) -> bool:
        with self._lock:
            if self._closed or self._visits.pop(sock, None) is None:
                return False
            # The job, rather than this server, closes the connection from now on.
            machine = self._machines.name(arrival.machine, arrival.hostname)
            self._new.append(Arrived(number, name, machine, ArrivedConnection(sock, talk.channel, talk.rest)))
            self._report_progress()
        return True

    def _report_progress(self) -> None:
        """Wake the thread that polls `fd`. The caller must hold the lock."""
        if not self._closed:
            os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Stop admitting processes, and disconnect those that `take` and `wait` have not returned yet.

        Can be called repeatedly.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            visits = dict(self._visits)
            for sock in visits:
                _shut(sock)
            left, self._new = self._new, []
        os.eventfd_write(self._stop, 1)
        try:
            for each in left:
                each.connection.end(time.monotonic())
            until = time.monotonic() + _END_SECONDS
            for visit in visits.values():
                visit.thread.join(max(0.0, until - time.monotonic()))
        finally:  # Close the sockets even if Ctrl-C interrupts the wait for the threads.
            self._thread.join(_END_SECONDS)
            self._listeners.close()
            if not self._thread.is_alive():
                os.close(self._stop)
            os.close(self.fd)

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
