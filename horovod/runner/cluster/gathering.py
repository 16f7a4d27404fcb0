"""Where processes that become agents arrive: listens from its making until `close`, and lets in who has the ticket."""

from __future__ import annotations

import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from horovod.common.contract.secret import Secret
from horovod.common.network.endpoints import parse_ports, to_listen
from horovod.common.network.interfaces import network_identity, scan
from horovod.common.network.listeners import Listeners
from horovod.common.security.auth import Acceptor, AuthError
from horovod.common.security.channel import Talk
from horovod.runner.cluster import ticket as tickets
from horovod.runner.cluster.placement import Machines
from horovod.runner.cluster.ticket import Answer, Ticket
from horovod.runner.reach.arrived import ArrivedConnection

_MOST = 64  # who may prove themselves at a time; when there are more, the oldest goes
_BACKLOG = 128
_END_SECONDS = 5.0


@dataclass(frozen=True)
class Arrived:
    """A process that has been let in. `name`: in place of a host's, of no other; `machine`: name of its machine."""

    number: int
    name: str
    machine: str
    connection: ArrivedConnection


class Gathering:
    """A thread listens; all else is called by the thread that runs the job, but for `fail`. `fd` is readable when there
    is something to `take`."""

    def __init__(
        self, what: str = "process", nics: Sequence[str] = (), ports: str = "", token: bytes | None = None
    ) -> None:
        """`what`: one of them, in words. `nics`: interfaces to listen on, else all; `ports`: as HOROVOD_PORT_RANGE.
        `token`: 32 bytes that the processes have already, None: new ones.
        Raises ValueError for those that are not there, AuthError where this Python cannot encrypt."""
        self.what = what
        listeners = Listeners(to_listen(scan(), ",".join(nics), alone=False), _BACKLOG, parse_ports(ports))
        self._listeners = listeners
        self.ticket = Ticket(tuple(listeners.endpoints), network_identity(), Secret(token or secrets.token_bytes(32)))
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._closed = False
        self._used: set[int] = set()  # numbers that have been let in
        self._machines = Machines()
        self._new: list[Arrived] = []
        self._refusals: list[str] = []
        self._trouble: BaseException | None = None
        self._visits: dict[socket.socket, threading.Thread] = {}
        self._thread = threading.Thread(target=self._listen, name="horovod-gathering", daemon=True)
        self._thread.start()

    # What is asked

    @property
    def closed(self) -> bool:
        """Is nobody let in any more? May be asked by any thread."""
        with self._lock:
            return self._closed

    def fail(self, trouble: BaseException) -> None:
        """Nobody more will come, for this reason. May be called by any thread."""
        with self._lock:
            if self._trouble is None and not self._closed:
                self._trouble = trouble
                os.eventfd_write(self.fd, 1)

    def take(self) -> tuple[list[Arrived], list[str], BaseException | None]:
        """Who has come, and who was refused, in words, since the last call; and why nobody more will come."""
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
        """Until so many are there. Raises TimeoutError that says what was waited for, with `advice`; ArrivalError for
        one that has to be refused; what `fail` was given. One that is gone again does not count."""
        until = time.monotonic() + seconds
        here: list[Arrived] = []
        while True:
            new, refusals, trouble = self.take()
            here = [each for each in here + new if not each.connection.gone]
            try:
                if refusals:
                    raise tickets.ArrivalError(refusals[0])
                if trouble is not None:
                    raise trouble
                if len(here) >= count:
                    return here
                left = until - time.monotonic()
                if left <= 0:
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
            poll.poll(left * 1000)

    def _late(self, count: int, here: Sequence[Arrived], seconds: float, advice: str) -> str:
        came = f" (there: {', '.join(each.name for each in here)})" if here else ""
        return (
            f"waited {seconds:g} s for {count} {self.what}s to start and call the launcher, {len(here)} have{came}. "
            f"{advice}"
        )

    # Visits

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
                try:
                    sock, _ = listeners[fd].accept()
                except OSError:  # gone again, or no descriptors are left
                    time.sleep(0.05)
                    continue
                self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        with self._lock:
            if len(self._visits) >= _MOST:
                _shut(next(iter(self._visits)))
            visit = threading.Thread(target=self._visit, args=(sock,), name="horovod-arrival", daemon=True)
            self._visits[sock] = visit
        visit.start()

    def _visit(self, sock: socket.socket) -> None:
        kept = False
        try:
            kept = self._admit(sock)
        except (AuthError, OSError, ValueError):  # a stranger, or one that is gone again
            pass
        finally:
            with self._lock:
                self._visits.pop(sock, None)
                if not kept:
                    sock.close()

    def _admit(self, sock: socket.socket) -> bool:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        talk = Talk(sock, accepts=True, seconds=tickets.SECONDS)
        sides: list[Acceptor] = []

        def acceptor(key: bytes) -> Acceptor:
            sides.append(Acceptor(key, 0, 0))
            return sides[0]

        talk.prove(acceptor, self.ticket.token)
        if sides[0].place.purpose != tickets.PURPOSE:
            raise AuthError("it has come for something else")
        number = tickets.number_of(sides[0].place)
        arrival = tickets.hear_arrival(talk)
        name = f"{arrival.hostname}, {arrival.label or f'{self.what} {number}'}"
        refusal = tickets.judge(arrival)
        with self._lock:
            if not refusal and number in self._used:
                refusal = f"{self.what} {number} has come twice; the second was not let in"
            elif not refusal:
                self._used.add(number)
            if refusal:
                self._refusals.append(f"{name}: {refusal}")
                os.eventfd_write(self.fd, 1)
        tickets.say(talk, Answer(refusal))
        if refusal:
            return False
        with self._lock:
            if self._closed:
                return False
            self._visits.pop(sock)  # from here on it is not ours to close
            machine = self._machines.name(arrival.machine, arrival.hostname)
            self._new.append(Arrived(number, name, machine, ArrivedConnection(sock, talk.channel, talk.rest)))
            os.eventfd_write(self.fd, 1)
        return True

    # The end

    def close(self) -> None:
        """Nobody is let in any more; who has come and was not taken is sent away. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            visits = dict(self._visits)
            for sock in visits:
                _shut(sock)
            left, self._new = self._new, []
        for each in left:
            each.connection.end(time.monotonic())
        os.eventfd_write(self._stop, 1)
        until = time.monotonic() + _END_SECONDS
        for thread in (self._thread, *visits.values()):
            thread.join(max(0.0, until - time.monotonic()))
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
