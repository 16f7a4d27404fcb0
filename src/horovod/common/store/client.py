"""Client of the store. Every call has a deadline. Not thread-safe."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
import zmq

from horovod.common.store.membership import REFUSED
from horovod.common.store.messages import (
    MAX_FRAME_BYTES,
    MAX_REQUEST_BYTES,
    MAX_VALUE_BYTES,
    Exchange,
    Get,
    Join,
    Leave,
    News,
    Reply,
    Request,
    Set,
    curve_pair,
    frames,
    unpack,
)
from horovod.common.store.sockets import dial

# Seconds between checks that the store is alive, while a client waits for the launcher's decision on the next epoch.
_ASK_AGAIN = 60.0
_GRACE = 2.0  # extra seconds to receive the server's own timeout error, which lists the missing ranks or names


class StoreError(RuntimeError):
    """Raised if the server rejects a request."""


class StoreRefused(StoreError):
    """Raised if the elastic job no longer has a slot for this worker."""


class StoreTimeout(StoreError):
    """Raised if a request to the store times out.

    Attributes:
        missing: Names (get) without a value, or ranks (exchange) that have not called. Empty if the server did not
            answer.
        gave_up: Ranks that called earlier but timed out. Empty if the server did not answer.
    """

    def __init__(self, message: str, missing: list[str], gave_up: list[str] | None = None) -> None:
        super().__init__(message)
        self.missing = missing
        self.gave_up = gave_up or []


@dataclass(frozen=True)
class ExchangeResult:
    """Result of an exchange of values between ranks."""

    round: int
    values: list[bytes]
    """Values by rank, or only the holder's value if another rank is the holder."""
    holder: int
    """Rank of this node that has the values of all ranks."""


class StoreClient:
    """Connection to the store of one job. Call ``close`` after use, or use a ``with`` statement."""

    def __init__(self, key: bytes, host: str, port: int, timeout: float = 30.0) -> None:
        """Connect in the background. If the address is wrong, the first call fails, not the constructor.

        Args:
            key: The job's key.
            host: Address of the store.
            port: Port of the store.
            timeout: Timeout in seconds of calls that do not specify one.

        Raises:
            ValueError: If the address cannot be used.
        """
        self._timeout = timeout
        self._where = f"{host}:{port}"
        self._last_id = 0
        # Request ids of unanswered peek() calls, by name.
        self._peeks: dict[str, int] = {}
        # Replies to peek() requests, by request id.
        self._peeked: dict[int, Reply] = {}
        self._decoder = msgspec.msgpack.Decoder(Reply)
        self._context = zmq.Context(io_threads=1)
        try:
            server = curve_pair(key, "server")[0]
            self._socket = dial(self._context, host, port, curve_pair(key, "client"), server, MAX_FRAME_BYTES)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ValueError(f"the store's address is {self._where!r}, which cannot be used: {error}") from None

    def set(self, name: str, value: bytes, timeout: float | None = None) -> None:
        """Store ``value`` (at most MAX_VALUE_BYTES) under ``name``. Raises StoreError if the store is full."""
        _check_value(name, value)
        self._call(Set(self._next_id(), name, value), self._seconds(timeout))

    def set_first(self, name: str, value: bytes, timeout: float | None = None) -> bytes:
        """Store ``value`` unless ``name`` already has a value. Return the resulting value of ``name``.

        All callers get the same result. Raises StoreError if the store is full.
        """
        _check_value(name, value)
        return self._call(Set(self._next_id(), name, value, first=True), self._seconds(timeout)).values[0]

    def get(self, name: str, timeout: float | None = None) -> bytes:
        """Wait for the value of ``name`` and return it. Raises StoreTimeout if it is not set in time."""
        return self.get_many([name], timeout)[0]

    def get_many(self, names: list[str], timeout: float | None = None) -> list[bytes]:
        """Wait for the values of all ``names`` and return them. Raises StoreTimeout with the missing names."""
        seconds = self._seconds(timeout)
        return self._call(Get(self._next_id(), names, seconds), seconds).values

    def find(self, name: str) -> bytes | None:
        """Return the value of ``name``, or None if there is none yet."""
        try:
            return self.get(name, 0.0)
        except StoreTimeout as error:
            if error.missing:
                return None
            raise

    def peek(self, name: str) -> bytes | None:
        """Return the value of ``name``, or None if it has not arrived from the store yet. Never blocks.

        The first call sends a request, and a later call returns the reply. After that, the next call sends a new
        request.
        """
        if name not in self._peeks:
            self._peeks[name] = self._next_id()
            request = Get(self._peeks[name], [name], 0.0)
            try:
                self._socket.send_multipart(frames(msgspec.msgpack.encode(request)), zmq.NOBLOCK)
            except zmq.Again:  # ZeroMQ has given up connecting to the store
                del self._peeks[name]
                return None
        while self._peeks[name] not in self._peeked and self._socket.poll(0):
            self._receive()
        reply = self._peeked.pop(self._peeks[name], None)
        if reply is None:
            return None
        del self._peeks[name]
        return None if reply.error else reply.values[0]

    def exchange(
        self, group: str, rank: int, size: int, value: bytes, timeout: float | None = None
    ) -> tuple[int, list[bytes]]:
        """Exchange values with the ``size`` ranks of ``group``.

        Args:
            group: Name of the group.
            rank: This rank.
            size: Number of ranks.
            value: This rank's value.
            timeout: Time limit in seconds.

        Returns:
            (number of the exchange, values by rank). The exchange number is never reused.

        Raises:
            StoreTimeout: If some ranks do not call in time. The message names them.
            StoreError: If ranks disagree about ``size``, or two processes claim the same rank.
        """
        met = self.exchange_by_node(group, rank, size, value, "", timeout)
        return met.round, met.values

    def exchange_by_node(
        self, group: str, rank: int, size: int, value: bytes, node: str, timeout: float | None = None
    ) -> ExchangeResult:
        """Exchange values as ``exchange`` does, but send the result only to the first rank of each ``node``.

        That rank passes the values to the node's other ranks. Network traffic is then proportional to the number of
        nodes.

        Raises:
            StoreError: If the reply is invalid or the store does not answer.
        """
        _check_value(group, value)
        seconds = self._seconds(timeout)
        reply = self._call(Exchange(self._next_id(), group, rank, size, value, seconds, node), seconds)
        if reply.holder not in (-1, rank):
            return ExchangeResult(reply.round, reply.values, reply.holder)
        try:
            return ExchangeResult(reply.round, unpack(reply.packed), rank)
        except ValueError as error:
            raise StoreError(str(error)) from None

    def join_next(
        self,
        worker: int,
        epoch: int,
        lost: Sequence[int] = (),
        facts: bytes = b"",
        timeout: float | None = None,
        in_sync: bool = False,
        holds: bool | None = None,
    ) -> bytes:
        """Wait until the launcher assigns this worker a rank in the next epoch of an elastic job.

        Returns the launcher's message. There is no time limit as long as the store answers, because the other workers
        can train for hours before this worker can join.

        Args:
            worker: Number of this worker.
            epoch: Previous epoch of this worker, or 0 if there is none.
            lost: Workers of the previous epoch that this worker has lost.
            facts: Encoded properties of the worker.
            in_sync: True if the worker's state includes all changes since the last sync.
            holds: True if the worker's state contains the progress of training. None means unknown.
            timeout: Maximum time in seconds without any answer from the store.

        Returns:
            The launcher's message with the assigned rank (``contract.membership.Place``), encoded.

        Raises:
            StoreRefused: If there is no slot for this worker. The message names the reason.
            StoreTimeout: If the store has not answered for ``timeout`` seconds.
        """
        _check_value("come", facts)
        seconds = self._seconds(timeout)
        request = Join(self._next_id(), worker, epoch, list(lost), facts, in_sync, holds)
        last_reply = time.monotonic()
        self._send(request, last_reply + seconds, seconds)
        request_id = request.id
        while True:
            until = min(time.monotonic() + _ASK_AGAIN, last_reply + seconds)
            try:
                reply = self._await({request.id, request_id}, until, seconds)
            except StoreTimeout:
                if time.monotonic() >= last_reply + seconds:
                    raise
                # Resend the request under the same id, in case the server was unreachable. Either reply is sufficient.
                request_id = self._next_id()
                self._send(Get(request_id, ["is the store there?"], 0.0), last_reply + seconds, seconds)
                self._send(request, last_reply + seconds, seconds)
                continue
            if reply.id == request.id:
                return self._checked(reply, seconds).values[0]
            last_reply = time.monotonic()

    def report_end(
        self, worker: int, epoch: int, lost: Sequence[int] = (), blame: str = "", timeout: float | None = None
    ) -> None:
        """Tell the launcher that this worker has noticed the end of its epoch.

        The worker calls this before it joins again (``join_next``).

        Args:
            worker: Number of this worker.
            epoch: Epoch that has ended.
            lost: Workers that this worker has lost.
            blame: Reason why the worker will never join again, or "" if it will.
            timeout: Time limit in seconds.
        """
        self._call(Leave(self._next_id(), worker, epoch, list(lost), blame), self._seconds(timeout))

    def news(
        self, worker: int, after: int, timeout: float | None = None, beside: Sequence[int] = ()
    ) -> tuple[int, list[bytes]]:
        """Wait for events from the launcher. The next call also returns events that arrived between the calls.

        Args:
            worker: Number of this worker.
            after: Number of the last received event.
            timeout: Time limit in seconds.
            beside: Additional descriptors to watch. The wait also ends when one of them becomes readable.

        Returns:
            (number of the last event, all events after number ``after``), or (``after``, []) if a descriptor became
            readable.

        Raises:
            StoreTimeout: If there was no event within ``timeout`` seconds.
        """
        seconds = self._seconds(timeout)
        deadline = time.monotonic() + seconds
        request = News(self._next_id(), worker, after)
        self._wait(zmq.POLLOUT, deadline + _GRACE, seconds)
        self._socket.send_multipart(frames(msgspec.msgpack.encode(request)))
        poller = zmq.Poller()
        for source in (self._socket, *beside):
            poller.register(source, zmq.POLLIN)
        while found := poller.poll(max(0, int((deadline - time.monotonic()) * 1000) + 1)):
            if self._socket not in dict(found):
                return after, []
            reply = self._receive()
            # Ignore replies with other ids. They belong to earlier calls that have timed out.
            if reply.id == request.id:
                return reply.round, reply.values
        raise StoreTimeout(f"no news within {seconds:g} s", [])

    def close(self) -> None:
        """Close the connection. Can be called repeatedly."""
        self._context.destroy(linger=0)

    def __enter__(self) -> "StoreClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else max(0.0, timeout)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _receive(self) -> Reply:
        reply = self._decoder.decode(b"".join(self._socket.recv_multipart()))
        if reply.id in self._peeks.values():
            self._peeked[reply.id] = reply
        return reply

    def _call(self, request: Request, seconds: float) -> Reply:
        deadline = time.monotonic() + max(seconds, self._timeout if seconds == 0 else 0) + _GRACE
        self._send(request, deadline, seconds)
        return self._checked(self._await({request.id}, deadline, seconds), seconds)

    def _send(self, request: Request, deadline: float, seconds: float) -> None:
        message = msgspec.msgpack.encode(request)
        if len(message) > MAX_REQUEST_BYTES:
            raise ValueError(f"a request must have at most {MAX_REQUEST_BYTES} bytes, got {len(message)}")
        # If a different service listens at this address, ZeroMQ drops the connection, and sending fails.
        self._wait(zmq.POLLOUT, deadline, seconds)
        self._socket.send_multipart(frames(message))

    def _await(self, requests: Collection[int], deadline: float, seconds: float) -> Reply:
        """Return the reply to one of these requests. Replies to earlier calls that timed out are skipped."""
        while True:
            self._wait(zmq.POLLIN, deadline, seconds)
            reply = self._receive()
            if reply.id in requests:
                return reply

    @staticmethod
    def _checked(reply: Reply, seconds: float) -> Reply:
        if reply.error == "timeout":
            awaited = reply.missing or reply.gave_up
            names = ", ".join(awaited[:16]) + (", ..." if len(awaited) > 16 else "")
            raise StoreTimeout(f"waited {seconds:g} s for {names}", reply.missing, reply.gave_up)
        if reply.error == REFUSED:
            raise StoreRefused(reply.values[0].decode(errors="replace"))
        if reply.error:
            raise StoreError(reply.error)
        return reply

    def _wait(self, event: int, deadline: float, seconds: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not self._socket.poll(int(left * 1000) + 1, event):
            raise StoreTimeout(
                f"no answer from the job's store at {self._where} within {seconds:g} s: either the launcher is gone, "
                "or this address cannot be reached, or the job key is not the launcher's",
                [],
            )


def _check_value(name: str, value: bytes) -> None:
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"the value of {name!r} must have at most {MAX_VALUE_BYTES} bytes, got {len(value)}")
