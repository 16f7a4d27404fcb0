"""Encrypted connections between hosts: keys, ciphers, and what an attacker can read or change on the wire."""

import contextlib
import os
import re

import pytest

from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.security import cipher
from horovod.common.security.auth import Acceptor, AuthError, Connector, Ephemeral
from horovod.common.security.cipher import Cipher
from tests.common.security.test_auth import KEY, PLACE, exchange


def fresh_pair(purpose):
    name, library = next(iter(cipher.available().items()))
    return Cipher(name, library).ephemeral()


def shake_hands(connector, acceptor):
    exchange(connector, acceptor)
    return connector.session, acceptor.session


def hands(key=KEY, ephemerals=lambda purpose: None):
    return shake_hands(Connector(key, PLACE, ephemerals), Acceptor(key, 7, 1, ephemerals))


def test_every_connection_has_keys_of_its_own():
    sessions = [hands(ephemerals=e) for e in (lambda purpose: None, fresh_pair) for _ in range(3)]
    keys = {key for pair in sessions for key in (pair[0].send, pair[0].receive)}
    assert len(keys) == 12


def test_keys_are_derived_from_secrets_of_both_ends():
    """A recorded connection and the job's key are not enough without the two ephemeral private keys."""
    steady = Ephemeral(b"p" * 32, lambda public: b"one secret")
    same_nonces = Ephemeral(b"p" * 32, lambda public: b"another secret")
    first, second = (hands(ephemerals=lambda purpose, pair=pair: pair)[0] for pair in (steady, same_nonces))
    assert first.send != second.send
    assert hands(ephemerals=lambda purpose: steady)[0] == first


def test_a_public_key_of_small_order_is_refused():
    evil = Ephemeral(b"\1" + b"\0" * 31, lambda public: b"", fresh_pair(2).cipher)
    with pytest.raises(AuthError, match="theirs must be a valid public key"):
        shake_hands(Connector(KEY, PLACE, lambda purpose: evil), Acceptor(KEY, 7, 1, fresh_pair))


def test_ephemeral_keys_are_bound_to_the_purpose_in_the_hello():
    purposes = []

    def note(purpose):
        purposes.append(purpose)

    hands(ephemerals=note)
    assert purposes == [2, 2]


def test_ciphers_are_chosen_by_the_preference_of_rank_0():
    both, reverse, one = list(cipher.NAMES), list(reversed(cipher.NAMES)), ["chacha20-poly1305"]
    labels = ["rank 0", "rank 1"]
    assert cipher.agree(labels, [both, reverse], "auto") == "aes-256-gcm"
    assert cipher.agree(labels, [reverse, both], "auto") == "chacha20-poly1305"
    assert cipher.agree(labels, [both, one], "auto") == "chacha20-poly1305"
    assert cipher.agree(labels, [both, both], "chacha20-poly1305") == "chacha20-poly1305"
    with pytest.raises(ValueError, match=r"^rank 1 has no library for encryption: .*libssl3.*pyzmq"):
        cipher.agree(labels, [both, []], "auto")
    with pytest.raises(ValueError, match=r"^rank 1 has no library for aes-256-gcm: "):
        cipher.agree(labels, [both, one], "aes-256-gcm")
    with pytest.raises(ValueError, match=r"^rank 1 has no library for aes-256-gcm: "):
        cipher.agree(labels, [both[:1], one], "auto")


def test_either_library_suffices(monkeypatch):
    found = cipher.available()
    assert "chacha20-poly1305" in found
    paths = cipher._loaded()
    assert any("libsodium" in path for path in paths), "pyzmq's wheels bring it"
    for kind in ("libsodium", "libcrypto"):
        some = [path for path in paths if kind in path]
        if not some:  # a Python with OpenSSL linked statically
            continue
        monkeypatch.setattr(cipher, "_loaded", lambda some=some: some)
        monkeypatch.setattr(cipher, "_SONAMES", ())
        alone = cipher.available()
        assert "chacha20-poly1305" in alone  # libsodium has AES only if it knows the processor's instructions
        assert set(alone.values()) == set(some[:1])
    monkeypatch.setattr(cipher, "_loaded", lambda: ["/nowhere/libcrypto.so.3", "libc.so.6"])
    assert cipher.available() == {}


@contextlib.contextmanager
def tapped(kinds, change=None):
    """A job whose connections of these kinds are tapped: (hvd, bytes by (kind, rank, "out" or "in")).

    Puts a pair of sockets between the engine and each connection, and a thread that copies. ``change(data)``:
    returns the bytes to pass on in place of some that leave over such a connection.
    """
    import socket
    import threading

    from horovod.common.bootstrap import joining, mesh

    seen = {}

    def copy(source, sink, record, change):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                record += data
                sink.sendall(change(data) if change else data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    class Tapped(mesh.MeshBuilder):
        def run(self, seconds, check):
            peers = super().run(seconds, check)
            for (kind, rank), real in list(peers.items()):
                if kind not in kinds:
                    continue
                with socket.create_server(("127.0.0.1", 0)) as server:
                    near = socket.create_connection(server.getsockname())
                    far, _ = server.accept()
                real.setblocking(True)
                peers[kind, rank] = near
                for direction, source, sink, change_it in (("out", far, real, change), ("in", real, far, None)):
                    record = seen[kind, rank, direction] = bytearray()
                    threading.Thread(target=copy, args=(source, sink, record, change_it), daemon=True).start()
            return peers

    joining.MeshBuilder = Tapped
    hvd = HorovodBasics("tests")
    try:
        hvd.init()
        yield hvd, seen
    finally:
        joining.MeshBuilder = mesh.MeshBuilder
        hvd.shutdown()


def rank_of_environment():
    return int(os.environ["HOROVOD_RANK"])


@pytest.mark.parametrize("asks", [[], [0, 1], [1]], ids=["none", "all", "rank 1"])
def test_the_wire_shows_neither_names_nor_data(pool, asks):
    """Data is encrypted as soon as any rank requests it."""

    def work(asks):
        from horovod.common.bootstrap.peers import CONTROL, DATA

        os.environ["HOROVOD_ENCRYPT_DATA"] = str(int(rank_of_environment() in asks))
        with tapped([CONTROL, DATA]) as (_, seen):
            broadcast_object(b"the weights of the last layer " * 100, 0, name="a.very.telling.name")
        assert sum(map(len, seen.values())) > 3000
        names = [b"telling" in record for (kind, _, _), record in seen.items() if kind == CONTROL]
        data = [b"weights" in record for (kind, _, _), record in seen.items() if kind == DATA]
        return any(names), any(data), len(seen)

    for names, data, records in pool(2, initialized=False, HOROVOD_TRANSPORT="tcp").run(work, asks):
        assert not names
        assert data == (not asks), "or the tap sees nothing"
        assert records == 4


@pytest.mark.parametrize("kind", ["CONTROL", "DATA"])
def test_changed_bytes_end_the_job_with_a_clear_error(pool, kind):
    def work():
        from horovod.common.bootstrap import peers

        changing = []

        def change(data):
            return data[:-1] + bytes([data[-1] ^ 1]) if changing else data

        rank = rank_of_environment()
        with tapped([getattr(peers, kind)], change if rank == 1 else None):
            broadcast_object("x", 0)
            if rank == 1:
                changing.append(True)
            try:
                for i in range(100):
                    broadcast_object(b"x" * 1000, i % 2)
            except HorovodInternalError as error:
                return str(error)
            return "no error"

    results = pool(2, initialized=False, HOROVOD_TRANSPORT="tcp", HOROVOD_ENCRYPT_DATA="1").run(work)
    assert re.search(r"rank 1.*altered, repeated or dropped on the way", results[0]), results
    # Rank 1 is notified by the other ranks if its own connection is not the changed one.
    assert "rank 0" in results[1] or "altered" in results[1], results


@pytest.mark.parametrize("call", [broadcast_object, allgather_object])
def test_replaced_objects_are_not_unpickled(pool, call, tmp_path):
    """Data links are not encrypted by default, and unpickling can run arbitrary code."""

    def work(mark):
        import pickle

        from horovod.common.bootstrap.peers import DATA

        class Bomb:
            def __reduce__(self):
                return os.mkdir, (str(mark),)

        harmless = "x" * 1000
        bomb = pickle.dumps(Bomb()).ljust(1000, b".")
        replace = (lambda data: data.replace(harmless.encode(), bomb)) if rank_of_environment() == 1 else None
        with tapped([DATA], replace):
            try:
                call(harmless, 1) if call is broadcast_object else call(harmless)
            except HorovodInternalError as error:
                return str(error)
        return "fine"

    first, second = pool(2, initialized=False, HOROVOD_TRANSPORT="tcp").run(work, tmp_path / "exploded")
    message = call.__name__ + r" 'str': the object of rank 1 was altered on its way.*HOROVOD_ENCRYPT_DATA"
    assert re.search(message, first)
    assert second == "fine" or "altered" in second or "rank 0" in second
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("transport", "expected"), [("tcp", r"^rank 1 \(host .*\) has no library for encryption: "), ("auto", "^joined$")]
)
def test_a_rank_without_a_library_is_named_on_all_ranks(pool, transport, expected):
    def work():
        from horovod.common.security import cipher

        original = cipher.available
        if rank_of_environment() == 1:
            cipher.available = dict
        try:
            HorovodBasics("tests").init()
        except ValueError as error:
            return str(error)
        finally:
            cipher.available = original
        return "joined"

    for result in pool(2, initialized=False, HOROVOD_TRANSPORT=transport).run(work):
        assert re.search(expected, result), result
