"""Streams that an agent relays: workers' connections to the store, and the launcher's connections to other agents.

The launcher opens streams with even numbers, which run commands. The agent opens streams with odd numbers, which are
connections of workers. All descriptors are non-blocking, and no call blocks.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from horovod.runner.agent.messages import CHUNK, ByteWriter, Report, Spawn, StreamData, StreamEnd, StreamOpen
from horovod.runner.base import linux
from horovod.runner.base.job_result import AgentError

READ_SIZE = 1 << 16
# Maximum number of simultaneous store connections of a worker: EACH in a fixed-size job, EACH_LASTING in an elastic
# job. There, one receives notifications, and connections from the previous epoch can still be open.
EACH = 2
EACH_LASTING = 4
# Number of connections that an agent accepts in addition to those that its workers need. The agent cannot authenticate
# peers (only the store can), so other programs on the host could otherwise use up all connections.
STRANGERS = 64
# Maximum number of connections to accept per call, so that a flood of connections does not delay heartbeats
ACCEPTS = 128
SENT_LIMIT = 64 << 20  # Maximum number of bytes queued for a peer that does not read
assert READ_SIZE <= CHUNK


@dataclass
class _Stream:
    number: int
    source: int  # File descriptor to read from, or -1 after end of file.
    writer: ByteWriter | None
    popen: subprocess.Popen[bytes] | None = None
    errors: int = -1
    sock: socket.socket | None = None
    closing: bool = False  # True if the peer has closed its end. The stream closes once all queued data is written.


class Streams:
    """Collection of all streams that one agent relays. It sends reports to the launcher by calling `report`."""

    def __init__(self, report: Callable[[Report], None]) -> None:
        self._report = report
        self._streams: dict[int, _Stream] = {}
        self._listener: socket.socket | None = None
        self._next = 1
        self._limit = 0  # Maximum number of simultaneous connections to the store

    def listen(self, workers: int, each: int = EACH) -> tuple[str, int]:
        """Accept workers' connections to the store on a loopback address.

        Call this again if the number of workers changes.

        The store, rather than the agent, authenticates the connections. The agent limits their number, because
        unauthenticated peers could exhaust its descriptors or the launcher's memory.

        Args:
            workers: Number of workers on this host.
            each: Maximum number of connections per worker.

        Returns:
            Host and port to which workers connect.
        """
        self._limit = min(each * workers + STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        if self._listener is None:
            self._listener = _loopback_listener()
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def _accept(self) -> None:
        assert self._listener is not None
        open_count = sum(stream.sock is not None for stream in self._streams.values())
        for _ in range(ACCEPTS):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if open_count >= self._limit:
                sock.close()
                continue
            open_count += 1
            sock.setblocking(False)
            stream = _Stream(self._next, sock.fileno(), ByteWriter(sock.fileno()), sock=sock)
            self._next += 2
            self._streams[stream.number] = stream
            self._report(StreamOpen(stream.number))

    def spawn(self, message: Spawn) -> None:
        """Run the command of a new stream. Raises AgentError if the stream number is already in use."""
        if message.stream in self._streams or message.stream % 2:
            raise AgentError(f"a stream number that is not free: {message.stream}")
        try:
            popen = subprocess.Popen(
                message.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=linux.dying_with(os.getpid()),
                bufsize=0,
            )
        except OSError as error:
            self._report(StreamData(message.stream, str(error).encode(), error=True))
            self._report(StreamEnd(message.stream, 127))
            return
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        for pipe in (popen.stdout, popen.stderr):
            os.set_blocking(pipe.fileno(), False)
        self._streams[message.stream] = _Stream(
            message.stream, popen.stdout.fileno(), ByteWriter(popen.stdin.fileno()), popen, popen.stderr.fileno()
        )

    @property
    def pids(self) -> set[int]:
        """Process ids of the commands that are still running."""
        return {stream.popen.pid for stream in self._streams.values() if stream.popen is not None}

    def reaped(self, pid: int, status: int) -> bool:
        """Record that a child process has exited. Return False if it does not belong to a stream."""
        for stream in self._streams.values():
            if stream.popen is not None and stream.popen.pid == pid:
                stream.popen.returncode = status
                self._read(stream, until_end=True)
                self._close(stream, status)
                return True
        return False

    def hang_up(self) -> None:
        """Close the stdin of all commands, so that the agents on other hosts exit."""
        for stream in self._streams.values():
            if stream.popen is not None:
                self._close_input(stream)

    def kill(self) -> None:
        """Send SIGKILL to all commands whose input and output are relayed as streams."""
        for pid in self.pids:
            linux.send_signal(pid, signal.SIGKILL)

    def take(self, message: StreamData | StreamEnd) -> None:
        """Write data from the launcher to a stream, or end the stream. Do nothing if the stream has already ended."""
        stream = self._streams.get(message.stream)
        if stream is None:
            return
        if isinstance(message, StreamData):
            if stream.writer is not None:
                stream.writer.write(message.data)
                if stream.writer.pending > SENT_LIMIT:
                    self._report(StreamEnd(stream.number))
                    self._drop(stream)
        elif stream.popen is None:
            stream.closing = True
        elif message.status:  # The remote host is lost. Kill the command, because ssh would take much longer to notice.
            linux.send_signal(stream.popen.pid, signal.SIGKILL)
        else:
            self._close_input(stream)

    def readable_fds(self) -> Iterator[int]:
        """Yield the file descriptors to poll for input."""
        if self._listener is not None:
            yield self._listener.fileno()
        for stream in self._streams.values():
            if stream.source >= 0:
                yield stream.source
            if stream.errors >= 0:
                yield stream.errors

    def writable_fds(self) -> Iterator[int]:
        """Yield the file descriptors to poll for output."""
        for stream in self._streams.values():
            if stream.writer is not None and stream.writer.pending and not stream.writer.broken:
                yield stream.writer.fd

    def serve(self, listening: bool) -> None:
        """Write queued data. If `listening` is True, also read from the streams and accept connections."""
        if listening and self._listener is not None:
            self._accept()
        for stream in list(self._streams.values()):
            if listening:
                self._read(stream)
            if stream.writer is not None:
                stream.writer.flush()
            if stream.closing and stream.sock is not None and (stream.writer is None or not stream.writer.pending):
                self._drop(stream)

    def _read(self, stream: _Stream, until_end: bool = False) -> None:
        for error in (True, False):
            while (fd := stream.errors if error else stream.source) >= 0:
                try:
                    data = os.read(fd, READ_SIZE)
                except BlockingIOError:
                    break
                except OSError:
                    data = b""
                if data:
                    self._report(StreamData(stream.number, data, error))
                elif error:
                    stream.errors = -1
                elif stream.sock is not None:
                    self._report(StreamEnd(stream.number))
                    self._drop(stream)
                    return
                else:
                    stream.source = -1
                if not until_end:
                    break

    def _close_input(self, stream: _Stream) -> None:
        assert stream.popen is not None
        assert stream.popen.stdin is not None
        if stream.writer is not None:
            stream.writer.flush()
            stream.writer = None
            stream.popen.stdin.close()

    def _close(self, stream: _Stream, status: int) -> None:
        assert stream.popen is not None
        self._close_input(stream)
        for pipe in (stream.popen.stdout, stream.popen.stderr):
            assert pipe is not None
            pipe.close()
        del self._streams[stream.number]
        self._report(StreamEnd(stream.number, status))

    def _drop(self, stream: _Stream) -> None:
        if stream.sock is not None:
            stream.sock.close()
            self._streams.pop(stream.number, None)

    def close(self) -> None:
        """Close the listener and all worker connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for stream in list(self._streams.values()):
            self._drop(stream)


def _loopback_listener() -> socket.socket:
    """Create a listening socket on 127.0.0.1, or on ::1 if the host has no IPv4."""
    last: OSError | None = None
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            last = error
            continue
        try:
            listener.bind((address, 0))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            last = error
            continue
        listener.setblocking(False)
        return listener
    raise AgentError(f"no loopback address to listen on: {last}")
