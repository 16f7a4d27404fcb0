"""How ranks get the job's key from rank 0, and which processes do not get it."""

import contextlib
import os
import socket
import threading
import time

import pytest
import zmq
import zmq.utils.z85

from horovod.common.contract.worker_env import make_key
from horovod.common.key_exchange import curve_exchange, key_server, methods, pmi, search
from horovod.common.key_exchange.meeting import choose
from horovod.common.key_exchange.methods import Group, MeetingError
from horovod.common.launchers import Place
from horovod.common.store import StoreClient
from tests.runner.launching import eventually
from tests.security.test_meeting_limits import Until

SECONDS = 60.0


def group(rank, size=2, key=None, **place):
    place = {"local_rank": 0, "local_size": 1, "job": f"test {os.getpid()} {time.monotonic_ns()}", **place}
    return Group(Place("a launcher", rank, size, **place), (), key)


class Board:
    """An in-process replacement for PMI and PMIx."""

    name = "a board"

    def __init__(self):
        self.values = {}

    def publish(self, name, value):
        assert len(value) <= pmi.MAX_VALUE
        assert name not in self.values, "PMI refuses a name that is used again"
        self.values[name] = value

    def find(self, name, rank):
        return self.values.get(name)


@pytest.fixture
def clean():
    """End the given meetings after the test."""
    with contextlib.ExitStack() as stack:

        def keep(meeting):
            if meeting.server is not None:
                stack.callback(meeting.server.close)
            stack.callback(meeting.formed)
            return meeting

        yield keep


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch):
    monkeypatch.setattr(methods, "own_addresses", lambda interface, named=(): ["127.0.0.1"])


def check_member(meeting, key):
    """Check that a rank with the key can use the store."""
    assert meeting.key == key
    assert "<secret" in repr(meeting.key), "it shows itself in tracebacks"
    with StoreClient(meeting.key, meeting.address, meeting.port) as store:
        store.set("x", b"y")


def ranks(job, key=None, **place):
    return [group(rank, 2, key, job=job, **place) for rank in range(2)]


def test_meeting_on_a_board(clean):
    board, key = Board(), make_key()
    lead, follow = ranks("b")
    clean(methods.OnBoard(board).lead(lead, key))
    check_member(methods.OnBoard(board).follow(follow, SECONDS), key)
    assert not any(bytes(key) in value for value in board.values.values()), "the key stands on the board"


def test_unlisted_ranks_get_no_key(clean):
    """It can read the board but not write to it, so it can pose neither as a present nor as an absent rank."""
    board = Board()
    lead, follow = ranks("s")
    clean(methods.OnBoard(board).lead(lead, make_key()))
    methods.OnBoard(board).follow(follow, SECONDS)
    pair = zmq.curve_keypair()
    card = next(value for name, value in board.values.items() if name.endswith("/store"))
    card = methods.msgspec.msgpack.decode(card, type=methods._Card)
    address = [(card.addresses[0], card.port)]
    for rank in (0, 1, 2, 1 << 31):
        assert curve_exchange.receive(address, card.server, pair, rank, time.monotonic() + 0.3) is None
    wrong = zmq.utils.z85.decode(zmq.curve_keypair()[0])
    assert curve_exchange.receive(address, wrong, pair, 1, time.monotonic() + 0.3) is None


@pytest.mark.parametrize("name", ["KeyServer", "CurveKeyServer"])
def test_resources_of_a_blocked_thread_are_kept(monkeypatch, name):
    """A lookup on the board, or creating a credential, takes longer than closing."""
    monkeypatch.setattr(key_server, "_VISIT_SECONDS", 0.2)
    monkeypatch.setattr(curve_exchange, "_CLOSE_SECONDS", 0.2)
    started, go_on = threading.Event(), threading.Event()

    def slow(_):
        started.set()
        go_on.wait(SECONDS)

    listeners = key_server.listen(["127.0.0.1"], [0])
    address = [listeners[0].getsockname()]
    if name == "KeyServer":
        exchange = key_server.KeyServer(listeners, slow)
        knocking = threading.Thread(target=lambda: list(search.knock(address, 0.1, time.monotonic() + SECONDS)))
    else:
        exchange = curve_exchange.CurveKeyServer(listeners, slow, make_key(), 1)
        ask = (address, exchange.public, zmq.curve_keypair(), 1, Until(go_on))
        knocking = threading.Thread(target=curve_exchange.receive, args=ask)
    knocking.start()
    try:
        assert started.wait(SECONDS)
        exchange.close()
        assert exchange._thread.is_alive()
        os.fstat(exchange._stop)
    finally:
        go_on.set()
        exchange._thread.join(SECONDS)
        knocking.join()
    assert not exchange._thread.is_alive()
    os.close(exchange._stop)


def test_unreadable_credentials_are_reported(clean, monkeypatch):
    def decode(_):
        raise methods.MungeError("munge: Expired credential")

    monkeypatch.setattr(methods, "encode", lambda payload: b"a credential")
    monkeypatch.setattr(methods, "decode", decode)
    lead, follow = ranks("expired", leads=("127.0.0.1",), port=_free_port())
    clean(methods.ByMunge().lead(lead, make_key()))

    def message_of():
        with pytest.raises(MeetingError) as caught:
            methods.ByMunge().follow(follow, 0.5)
        return "can open (munge: Expired credential; do the hosts' clocks agree" in str(caught.value)

    eventually(message_of, SECONDS, "the credential is spoken of")


def test_meeting_at_a_port(clean):
    secret = make_key()
    lead, follow = ranks("p", secret, leads=("127.0.0.1",), port=_free_port())
    key = lead.job_key(make_key())
    clean(methods.AtPort().lead(lead, key))
    check_member(methods.AtPort().follow(follow, SECONDS), key)
    with pytest.raises(MeetingError, match=r"does not answer at 127\.0\.0\.1:\d+"):
        methods.AtPort().follow(group(1, 2, make_key(), job="p", leads=("127.0.0.1",), port=follow.place.port), 0.5)


def test_port_in_use_by_a_stranger(clean):
    port = _free_port()
    with socket.create_server(("127.0.0.1", port + 1)):
        lead, follow = ranks("t", make_key(), leads=("127.0.0.1",), port=port)
        key = lead.job_key(b"")
        meeting = clean(methods.AtPort().lead(lead, key))
        assert meeting.port != port + 1
        check_member(methods.AtPort().follow(follow, SECONDS), key)


def test_by_munge(clean):
    if not methods.available():
        pytest.skip("munged does not run here")
    key, port = make_key(), _free_port()
    lead, follow = ranks("m", leads=("127.0.0.1",), port=port)
    clean(methods.ByMunge().lead(lead, key))
    check_member(methods.ByMunge().follow(follow, SECONDS), key)
    with pytest.raises(MeetingError, match="gives no credential"):
        methods.ByMunge().follow(group(1, 2, job="another", leads=("127.0.0.1",), port=port), 0.3)


def test_slow_strangers_do_not_delay_the_deadline():
    """Eight ports with a listener that sends nothing, initially tried for 5 s each."""
    with contextlib.ExitStack() as connections:
        silent = [connections.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname() for _ in range(8)]
        begin = time.monotonic()
        assert list(search.knock(silent, 5.0, begin + 0.5)) == []
        assert time.monotonic() - begin < 20


def test_unknown_names_are_looked_up_again_later(monkeypatch):
    monkeypatch.setattr(search, "_UNKNOWN", SECONDS)
    lookups = []
    names = search.Names(["a"], [1], lambda name: lookups.append(name) or [], time.monotonic() + SECONDS)
    assert names() == []
    eventually(lambda: not names._running, SECONDS, "the look-up is over")
    assert names() == []
    assert lookups == ["a"]
    names._again.clear()
    assert names() == []
    eventually(lambda: len(lookups) == 2, SECONDS, "the name is looked up again")


def test_jobs_with_one_key_do_not_meet():
    key = make_key()
    keys = {group(0, 2, key, job=job).job_key(b"") for job in ("a", "b")}
    keys.add(Group(group(0, 4, key, job="a").place, (0, 1), key).job_key(b""))
    assert len(keys) == 3
    assert group(0, 2, None, job="a").job_key(b"fresh") == b"fresh"


@pytest.mark.parametrize(
    ("launcher", "place", "parts"),
    [
        ("srun", {}, ["srun started 4 processes", "--mpi=pmi2", "HOROVOD_KEY_FILE", "HOROVOD_JOB_KEY"]),
        ("torchrun", {"leads": ("a",), "port": 1}, ["torchrun started 4 processes", "openssl rand -hex 32"]),
        ("Open MPI", {"mpi": True}, ["Open MPI started 4 processes", "PMIx", "horovodrun --mpi -np 4"]),
    ],
)
def test_missing_keys_are_reported_with_advice(monkeypatch, launcher, place, parts):
    monkeypatch.setattr(methods, "available", lambda: False)
    monkeypatch.delenv("PMI_FD", raising=False)
    monkeypatch.delenv("PMIX_NAMESPACE", raising=False)
    with pytest.raises(ValueError) as caught:
        choose(Group(Place(launcher, 1, 4, local_size=1, **place), (), None))
    for part in parts:
        assert part in str(caught.value)


def _free_port() -> int:
    """Return a port followed by eight free ones, below the system's ephemeral range."""
    for first in range(22000 + os.getpid() % 700 * 10, 32000, 10):
        with contextlib.ExitStack() as connections:
            try:
                for port in range(first + 1, first + 9):
                    connections.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")
