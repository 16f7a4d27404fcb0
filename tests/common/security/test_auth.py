"""The authentication handshake: members pass, everything else fails."""

import contextlib
import os
import socket
import threading
import time

import pytest

from horovod.common.security import auth
from horovod.common.security.auth import Acceptor, AuthError, Connector, Inviter, Place

KEY = b"k" * 32
PLACE = Place(purpose=2, epoch=7, source=3, target=1)


def exchange(connector, acceptor):
    """Run both sides to the end without a socket; return the bytes that the connector sent to the acceptor."""
    sent = b""
    while connector.outgoing or acceptor.outgoing:
        data, connector.outgoing = connector.outgoing, b""
        sent += data
        acceptor.feed(data)
        data, acceptor.outgoing = acceptor.outgoing, b""
        if data:
            connector.feed(data)
    return sent


def test_members_agree_on_the_session():
    connector, acceptor = Connector(KEY, PLACE), Acceptor(KEY, epoch=7, rank=1)
    exchange(connector, acceptor)
    assert connector.complete
    assert acceptor.complete
    assert acceptor.place == PLACE
    assert connector.bytes_wanted == acceptor.bytes_wanted == 0
    local, remote = connector.session, acceptor.session
    assert (local.send, local.receive) == (remote.receive, remote.send)
    assert local.send != local.receive  # one key for each direction
    # Their representation in a traceback does not contain a key.
    assert repr(local) == "Session()"
    assert repr(auth.Ephemeral(b"p", KEY.count)) == "Ephemeral(public=b'p', cipher=0)"


def test_an_acceptor_that_connects_invites_the_connector():
    inviter, invited = Inviter(KEY, PLACE), Acceptor(KEY, epoch=7, rank=3)
    invitation, inviter.outgoing = inviter.outgoing, b""
    invited.feed(invitation[: invited.bytes_wanted])
    invited.feed(invitation[-invited.bytes_wanted :])
    assert invited.complete
    assert not invited.outgoing
    assert invited.invited == Place(purpose=2, epoch=7, source=1, target=3)
    with pytest.raises(AuthError, match="not complete"):
        _ = invited.place
    exchange(Connector(KEY, PLACE), inviter)
    assert inviter.place == PLACE


@pytest.mark.parametrize("byte", [5, 9, 20, 24, 40, 60, 87])
def test_a_forged_invitation_is_refused(byte):
    forged = bytearray(Inviter(KEY, PLACE).outgoing)
    forged[byte] ^= 1
    invited = Acceptor(KEY, 7, 3)
    with contextlib.suppress(AuthError):
        invited.feed(bytes(forged[:56]))
    with contextlib.suppress(AuthError):
        invited.feed(bytes(forged[56:]))
    assert not invited.complete
    assert invited.invited is None
    assert not invited.outgoing


def test_an_invitation_is_for_one_rank_and_epoch():
    hello = Inviter(KEY, PLACE).outgoing[:56]
    for acceptor in (Acceptor(KEY, 8, 3), Acceptor(KEY, 7, 2)):
        with pytest.raises(AuthError, match="meant for rank 3 in epoch 7"):
            acceptor.feed(hello)


def test_the_connector_detects_a_stranger():
    with pytest.raises(AuthError, match="does not know the job's key"):
        exchange(Connector(KEY, PLACE), Acceptor(b"x" * 32, 7, 1))


def test_the_acceptor_detects_a_stranger():
    connector, acceptor = Connector(b"x" * 32, PLACE), Acceptor(KEY, 7, 1)
    acceptor.feed(connector.outgoing)
    with pytest.raises(AuthError, match="does not know the job's key"):
        acceptor.feed(os.urandom(32))


def test_the_connector_is_done_when_welcomed():
    """Before that the acceptor may have given up; and only the acceptor can send the welcome."""
    connector, acceptor = Connector(KEY, PLACE), Acceptor(KEY, 7, 1)
    acceptor.feed(connector.outgoing)
    connector.feed(acceptor.outgoing)
    assert connector.proven
    assert not connector.complete
    with pytest.raises(AuthError, match="not complete"):
        _ = connector.session
    with pytest.raises(AuthError, match="does not know the job's key"):
        connector.feed(os.urandom(32))
    assert not connector.complete


@pytest.mark.parametrize(("epoch", "rank"), [(8, 1), (7, 2)])
def test_another_epoch_or_rank_is_refused(epoch, rank):
    with pytest.raises(AuthError, match="meant for rank 1 in epoch 7"):
        Acceptor(KEY, epoch, rank).feed(Connector(KEY, PLACE).outgoing)


@pytest.mark.parametrize("byte", range(56))
def test_the_mac_covers_every_byte_of_the_hello(byte):
    """Purpose, ranks, epoch, nonce and the three padding bytes are all covered."""
    connector, acceptor = Connector(KEY, PLACE), Acceptor(KEY, 7, 1)
    hello = bytearray(connector.outgoing)
    assert len(hello) == 56
    hello[byte] ^= 1
    connector.outgoing = b""
    with pytest.raises(AuthError):  # noqa: PT012
        acceptor.feed(bytes(hello))
        connector.feed(acceptor.outgoing)


def test_recorded_connections_cannot_be_replayed():
    recorded = exchange(Connector(KEY, PLACE), Acceptor(KEY, 7, 1))
    acceptor = Acceptor(KEY, 7, 1)
    acceptor.feed(recorded[:-32])
    with pytest.raises(AuthError):
        acceptor.feed(recorded[-32:])


def test_responses_cannot_be_reflected():
    """The acceptor's MAC, sent back as the proof, must not pass."""
    connector, acceptor = Connector(KEY, PLACE), Acceptor(KEY, 7, 1)
    acceptor.feed(connector.outgoing)
    with pytest.raises(AuthError):
        acceptor.feed(acceptor.outgoing[-32:])


def test_data_beyond_the_handshake_is_refused():
    with pytest.raises(AuthError, match="more data"):
        Acceptor(KEY, 7, 1).feed(b"\0" * 4096)


def run_accept(sock, timeout=30.0):
    result = []

    def run():
        try:
            result.append(auth.accept(sock, KEY, 7, 1, timeout))
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def test_sockets_transfer_exactly_the_bytes():
    a, b = socket.socketpair()
    with a, b:
        thread, result = run_accept(b)
        auth.connect(a, KEY, PLACE, 30)
        a.sendall(b"data of the link")
        thread.join(30)
        assert result == [PLACE]
        assert b.recv(100) == b"data of the link"


def test_silence_ends_at_the_deadline():
    a, b = socket.socketpair()
    with a, b:
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
            auth.connect(a, KEY, PLACE, 0.2)
        assert time.monotonic() - begin < 20
        with pytest.raises(TimeoutError):
            auth.accept(b, b"y" * 32, 7, 1, 0.2)


def test_slow_sending_does_not_extend_the_deadline():
    a, b = socket.socketpair()
    with a, b:
        thread, result = run_accept(b, timeout=0.4)
        begin = time.monotonic()
        while thread.is_alive() and time.monotonic() - begin < 30:
            a.sendall(b"H")
            time.sleep(0.05)
        thread.join(30)
        assert isinstance(result[0], TimeoutError)  # AuthError if it had read up to the end of the first message


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\nHost: here\r\nAccept: everything that there is\r\n\r\n", b"\0" * 200]
)
def test_garbage_is_refused(garbage):
    a, b = socket.socketpair()
    with a, b:
        thread, result = run_accept(b)
        a.sendall(garbage)
        thread.join(30)
        assert isinstance(result[0], AuthError)
