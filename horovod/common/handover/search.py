"""Which of several addresses leads to the job's store? All are asked at once; only the store can answer, since the
connection is encrypted for its key.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import zmq

from horovod.common.handover.door import read_all
from horovod.common.store.dial import dial
from horovod.common.store.messages import Get, curve_pair

Candidate = tuple[str, int]

_AT_ONCE = 256
_STEP = 0.5  # s between looks at the clock and at candidates that are new
_LONGEST = 4096  # bytes of a message that is accepted
_LOOK_UPS = 8  # at a time
_UNKNOWN = 3.0  # s until a name that was not known is looked up again


def ask(candidates: Callable[[], Iterable[Candidate]], key: bytes, deadline: float) -> Candidate | None:
    """The first candidate where the store with this job key answers; None after ``deadline``.

    ``candidates`` is called now and then and may tell more each time.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    poller = zmq.Poller()
    asked: dict[Candidate, zmq.Socket[bytes]] = {}
    try:
        while True:
            for candidate in candidates():
                if candidate not in asked and len(asked) < _AT_ONCE:
                    asked[candidate] = _connect(context, candidate, key)
                    poller.register(asked[candidate], zmq.POLLIN)
            left = deadline - time.monotonic()
            ready = dict(poller.poll(int(max(0, min(_STEP, left)) * 1000)))
            for candidate, sock in asked.items():
                if sock in ready:
                    return candidate
            if left <= 0:
                return None
    finally:
        context.destroy(linger=0)


def _connect(context: "zmq.Context[zmq.Socket[bytes]]", candidate: Candidate, key: bytes) -> "zmq.Socket[bytes]":
    sock = dial(context, *candidate, curve_pair(key, "client"), curve_pair(key, "server")[0], _LONGEST)
    question = msgspec.msgpack.encode(Get(1, ["anything"], 0.0))  # that it has no such value is answer enough
    with contextlib.suppress(zmq.Again):  # ZeroMQ has found already that something else is there
        sock.send(question, zmq.NOBLOCK)
    return sock


def knock(candidates: Sequence[Candidate], seconds: float, deadline: float) -> Iterable[tuple[Candidate, bytes]]:
    """What doors (``door.Door``) at these addresses give, one after the other; each may take ``seconds`` to let us in
    and as many to speak, all together until ``deadline``.
    """
    for candidate in candidates:
        if time.monotonic() >= deadline:
            return
        try:
            with socket.create_connection(candidate, timeout=_within(seconds, deadline)) as sock:
                data = read_all(sock, _within(seconds, deadline))
        except OSError:
            continue
        if data:
            yield candidate, data


def _within(seconds: float, deadline: float) -> float:
    """At most ``seconds``, never 0, which would mean not to wait for a socket at all."""
    return max(0.01, min(seconds, deadline - time.monotonic()))


class Names:
    """Addresses of hosts by name, found bit by bit: a name that is not known yet (a pod that starts) may be later.

    Looked up in threads, for a name server that is away lets a look-up last longer than anybody waits for rank 0.
    """

    def __init__(
        self, names: Sequence[str], ports: Sequence[int], resolve: Callable[[str], list[str]], deadline: float
    ) -> None:
        """After ``deadline`` nothing is looked up or waited for any more."""
        self._names = names
        self._ports = ports
        self._resolve = resolve
        self._deadline = deadline
        self._found: dict[str, list[str]] = {}
        self._again: dict[str, float] = {}  # when a name that was not known may be looked up again
        self._running: set[str] = set()
        self._changed = threading.Condition()
        self._begin = time.monotonic()

    def __call__(self) -> list[Candidate]:
        """All that are known, those of the first name first. Others are looked for when the first keeps silent. Takes
        half a second at most.
        """
        now = time.monotonic()
        waited = now - self._begin
        wanted = list(dict.fromkeys(self._names[: 1 if waited < 2 else 8 if waited < 5 else 64]))
        with self._changed:
            if now < self._deadline:
                for name in wanted:
                    self._start(name, now)
                self._changed.wait_for(lambda: not self._running, max(0.0, min(_STEP, self._deadline - now)))
            return [(address, port) for name in wanted for address in self._found.get(name, ()) for port in self._ports]

    def _start(self, name: str, now: float) -> None:
        missing = name not in self._found and name not in self._running and now >= self._again.get(name, 0.0)
        if missing and len(self._running) < _LOOK_UPS:
            self._running.add(name)
            threading.Thread(target=self._look_up, args=(name,), name="horovod-names", daemon=True).start()

    def _look_up(self, name: str) -> None:
        found: list[str] = []
        try:
            found = self._resolve(name)
        finally:
            with self._changed:
                self._running.discard(name)
                if found:
                    self._found[name] = found
                self._again[name] = time.monotonic() + _UNKNOWN
                self._changed.notify_all()


def resolve(name: str) -> list[str]:
    """Addresses of a host; none when the name is not known."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
