"""Fuzz targets for all Python code that reads bytes from sockets, pipes or untrusted files.

Each target is a function of bytes that raises an exception if there is a bug. ``fuzz/fuzz.py`` searches for inputs, and
``tests/security/test_corpus.py`` runs those of ``fuzz/corpus``.

    python -m fuzz.targets         writes the initial corpus of valid inputs
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from horovod._version import __version__
from horovod.common.bootstrap import peers
from horovod.common.contract import live, reasons
from horovod.common.security.auth import Acceptor, AuthError, Connector, Place
from horovod.common.store.messages import Exchange, Get, Reply, Request, Set
from horovod.common.store.table import MAX_TOTAL_BYTES, Table
from horovod.data import TarFiles
from horovod.recorder import __main__
from horovod.runner.agent import messages
from horovod.runner.agent.messages import FrameReader
from horovod.runner.attribution import first_failure
from horovod.runner.attribution.endings import Endings
from horovod.runner.base.job_result import AgentError
from horovod.runner.dashboard.state import State
from horovod.runner.plan.hosts import Slot
from horovod.timeline import read as trace
from horovod.timeline.merge import merge
from horovod.timeline.summary import render, summarize

CORPUS = Path(__file__).parent / "corpus"
KEY = bytes(range(32))
_REQUESTS = msgspec.msgpack.Decoder(Request)


def store(data: bytes) -> None:
    """Send requests to the store, one second apart. A length of 2 bytes precedes each request."""
    table = Table()
    for number, body in enumerate(_frames(data)):
        client = bytes([number % 3])
        with contextlib.suppress(ValueError, RecursionError):
            for _, reply in table.handle(client, _REQUESTS.decode(body), float(number)):
                assert isinstance(reply, Reply)
                msgspec.msgpack.encode(reply)
        for _, reply in table.expire(float(number)):
            assert reply.error == "timeout"
        table.publish()
        assert 0 <= table._bytes <= MAX_TOTAL_BYTES
    table.expire(float("inf"))
    assert table._rounds == {}
    assert not table._waits_of
    assert table._bytes == sum(len(name) + len(value) + 256 for name, value in table._values.items())


def requests(data: bytes) -> None:
    """Decode messages from a launcher to its agent."""
    _conversation(data, messages.Request)


def reports(data: bytes) -> None:
    """Decode messages from an agent to its launcher."""
    _conversation(data, messages.Report)


def _conversation(data: bytes, kind: object) -> None:
    whole: FrameReader[object] = FrameReader(kind)
    cut: FrameReader[object] = FrameReader(kind)
    try:
        at_once = whole.feed(data)
    except AgentError:
        with contextlib.suppress(AgentError):
            _feed_in_pieces(cut, data)
            raise AssertionError("refused at once, accepted in pieces") from None
        return
    assert repr(_feed_in_pieces(cut, data)) == repr(at_once)
    for message in at_once:
        again: FrameReader[object] = FrameReader(kind)
        assert repr(again.feed(messages.frame(message))) == repr([message])  # type: ignore[arg-type]


def _feed_in_pieces(reader: FrameReader[object], data: bytes) -> list[object]:
    return [message for at in range(0, len(data), 7) for message in reader.feed(data[at : at + 7])]


def endings(data: bytes) -> None:
    """Parse workers' reports (lines from their agent's pipe), and attribute the failures of ranks that ended."""
    job = Endings(dict.fromkeys(range(4), "h"))
    for line in data.split(b"\n"):
        job.record(line)
        told = reasons.decode(line)
        assert told is None or reasons.decode(reasons.encode(told)) is not None
    for rank, status in enumerate((0, 1, 1, -9)):
        if rank == 3:
            job.stop({})
        job.end(messages.Exited(rank, status), "")
    assert first_failure.judge(job.ends) is not None


def live_page(data: bytes) -> None:
    """Process rank 0's data for the live page, and build the messages to the page."""
    state = State("command", [Slot(rank, 4, rank, 4, 0, 1, "h") for rank in range(4)])
    for number, line in enumerate(data.split(b"\n")):
        state.add_report(line, float(number))
        state.output(number % 4, 1 + number % 2, line)
        message = live.decode(line)
        assert message is None or live.decode(live.encode(message)) is not None
    told = json.loads(msgspec.json.encode(state.since(0, 1.0)))
    assert told["version"] == state.version
    assert state.since(state.version, 1.0) == {"version": state.version, "now": 1.0}


def acceptor(data: bytes) -> None:
    """Feed the accepting side of a handshake from a peer without the key. The first byte sets the piece size."""
    _never_done(Acceptor(KEY, 7, 1), data)


def connector(data: bytes) -> None:
    """Feed the connecting side of a handshake from a peer without the key. The first byte sets the piece size."""
    _never_done(Connector(KEY, Place(2, 7, 3, 1)), data)


def _never_done(side: Acceptor | Connector, data: bytes) -> None:
    size = data[0] % 64 + 1 if data else 1
    at = 1
    try:
        while at < len(data):
            piece = data[at : at + min(size, max(1, side.bytes_wanted))]
            side.feed(piece)
            at += len(piece)
    except AuthError:
        return
    assert not side.complete
    assert side.bytes_wanted > 0


def records(data: bytes) -> None:
    """Decode the records that ranks exchange through the store."""
    try:
        found = peers.decode_peers([data])
    except (ValueError, RecursionError):
        return
    assert isinstance(found[0], peers.Peer)
    assert peers.decode_peers([msgspec.msgpack.encode(found[0])]) == found


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 2 <= len(data):
        (length,) = struct.unpack_from(">H", data, at)
        yield data[at + 2 : at + 2 + length]
        at += 2 + length


def archive(data: bytes) -> None:
    """Read a tar file of data records that another user might have written."""
    with _file(data) as path, contextlib.suppress(ValueError):
        source = TarFiles(path, block_bytes=1024)
        for block in range(len(source.lengths)):
            assert len(source.load(block)) == source.lengths[block]


def timeline(data: bytes) -> None:
    """Read a rank's timeline file that another user might have written."""
    with _file(data) as path, contextlib.suppress(ValueError):
        traces = [trace.read(path)]
        render(summarize(traces))
        merge(traces)


def recorder(data: bytes) -> None:
    """Read a flight recorder file that another user might have written."""
    with _file(data) as path, contextlib.suppress(ValueError):
        one = __main__.read(Path(path))
        __main__.compare([one, dataclasses.replace(one, rank=one.rank + 1, entries=one.entries[:-1])])


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[str]:
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(data)
        file.flush()
        yield file.name


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        *(store, requests, reports, endings, live_page, acceptor, connector, records),
        *(archive, timeline, recorder),
    )
}


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """Yield (target, name, bytes) for the initial corpus."""
    asked = [
        Set(1, "a", b"value"),
        Get(2, ["a", "b"], 3.0),
        Exchange(3, "init", 0, 2, b"x", 9.0),
        Exchange(4, "init", 1, 2, b"y", 9.0),
        Set(5, "b", b"", True),
        Get(6, ["c"], 0.0),
    ]
    bodies = [msgspec.msgpack.encode(request) for request in asked]
    yield "store", "honest", b"".join(struct.pack(">H", len(body)) + body for body in bodies)
    yield "store", "nested", b"\x01\x00\x93\xa3set" + b"\x91" * 251
    worker = messages.Worker(0, [(b"HOROVOD_RANK", b"0")])
    start = messages.StartJob([b"python", b"train.py"], b"/", [(b"A", b"b")], [worker], KEY)
    said: list[messages.Request] = [messages.Payload(b"f"), start, messages.StdinData(b"x"), messages.Stop(5.0)]
    said += [messages.Watch(10.0), messages.Spawn(2, [b"ssh", b"host"]), messages.StreamData(1, b"x")]
    yield "requests", "honest", b"".join(map(messages.frame, said))
    heard: list[messages.Report] = [messages.Started([(0, 17)]), messages.Output(0, 1, b"line\n"), messages.Heartbeat()]
    heard += [messages.StdinReady(True), messages.Result(0, b"r"), messages.Exited(0, 1, "why"), messages.Finished([])]
    heard += [messages.WorkerReport(b"{}"), messages.Notice("n"), messages.StreamOpen(1), messages.StreamEnd(1, 2)]
    yield "reports", "honest", b"".join(map(messages.frame, heard))
    ended = [reasons.Called(0), reasons.Left(0, "the process ended"), reasons.Ending(1, "lost", [0])]
    ended += [reasons.Refused(0), reasons.Ending(2, "absent", [0, 3], 30.0)]
    yield "endings", "honest", b"".join(map(reasons.encode, ended))
    last, parts = live.Last(1, 0.7, 0.008), live.Parts(0.05, 0.01, 0.02, 0.02, 0.01)
    shown: list[live.Message] = [live.Overall(1.0, 9, 8, parts, parts, 1e9, 2e9, last, None, "s")]
    shown += [live.Rows([live.Row(0, 9, parts, 0.7, 0.01)]), live.Values([live.Value("loss", 0.5, 0.1, None, 4)])]
    shown += [live.Waits(1, [live.Wait("grad", 3.0, 1, 1, [1])], "why"), live.Overall(2.0, 19, 18)]
    yield "live_page", "honest", b"".join(map(live.encode, shown))
    yield "live_page", "large", b'{"type":"live-job","at":1e999,"made":-9223372036854775808,"own":18446744073709551615}'
    for target in ("requests", "reports"):
        yield target, "not-utf8", messages.frame(messages.Notice("n")).replace(b"\xa1n", b"\xa1\xff")
        yield target, "nested", struct.pack(">I", 2008) + b"\x82\xa4type\xa1x" + b"\x91" * 2000
    hello = Connector(KEY, Place(2, 7, 3, 1)).outgoing
    yield "acceptor", "hello", b"\x3f" + hello + bytes(32)
    yield "acceptor", "invitation", b"\x07" + hello[:4] + bytes([hello[4] | 0x80]) + hello[5:] + bytes(32)
    yield "connector", "challenge", b"\x1f" + bytes(64)
    rank = peers.Peer(
        __version__, 0, "host", "machine", 17, "network", [], "name", [0, 1], {"A": 1}, False, [[0]], ["aes"]
    )
    yield "records", "honest", msgspec.msgpack.encode(rank)
    yield "archive", "honest", _tar()
    about = {"rank": 0, "size": 2, "host": "h", "start_ns": 1}
    clock = {"offset_ns": 5, "error_ns": 3}
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 0, "name": "horovod", "args": about},
        {"ph": "M", "pid": 0, "name": "clock_sync", "ts": 1.5, "args": clock},
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "grad"}},
        {"ph": "B", "pid": 1, "ts": 2, "name": "ALLREDUCE", "args": {"number": 1}},
        {"ph": "E", "pid": 1, "ts": 3},
    ]
    yield "timeline", "honest", json.dumps(events).encode()
    head = {"horovod": "recorder", "version": 1, "rank": 0, "size": 2, "label": "rank 0", "pid": 1, "why": "w"}
    entry = {"number": 0, "what": "carried out", "begin": 0, "end": 1, "name": "grad", "kind": "allreduce"}
    entry |= {"dtype": "float32", "op": "sum", "set": 0, "face": 0, "shape": [4], "dimensions": 1, "count": 1}
    entry |= {"bytes": 16, "schedule": "0", "position": 0, "guarded": False}
    lines = [json.dumps(line) for line in ({**head, "monotonic_ns": 1, "unix_ns": 2}, entry)]
    yield "recorder", "honest", ("\n".join(lines) + "\n").encode()


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name in ("0001.txt", "0001.cls", "ä" * 120 + ".txt"):
            member = tarfile.TarInfo(name)
            member.size = 4
            made.addfile(member, io.BytesIO(b"data"))
    return file.getvalue()


def main() -> None:
    for target, name, data in seeds():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        (CORPUS / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
