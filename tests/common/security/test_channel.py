import socket
import threading

import pytest

from horovod.common.security.auth import Acceptor, AuthError, Connector, Place
from horovod.common.security.channel import Channel, Talk, bound_key

SECRET = bytes(range(32))
PLACE = Place(101, 0, 3, 0)


def meet(one, other):
    """Exchange messages between both ends until neither has more to send."""
    while (sent := one.take()) + (back := other.take()):
        other.feed(sent)
        one.feed(back)


@pytest.fixture
def ends():
    connector, acceptor = Channel(accepts=False), Channel(accepts=True)
    meet(connector, acceptor)
    return connector, acceptor


def test_only_both_ends_read_the_data(ends):
    connector, acceptor = ends
    assert connector.established
    assert acceptor.established
    for text in (b"spam", b"x" * 1_000_000):
        connector.write(text)
        sealed = connector.take()
        assert text[:100] not in sealed
        assert acceptor.feed(sealed[:7]) + acceptor.feed(sealed[7:]) == text
    acceptor.write(b"eggs")
    assert connector.feed(acceptor.take()) == b"eggs"


def test_the_binding_is_of_one_connection_only(ends):
    second = Channel(accepts=False), Channel(accepts=True)
    meet(*second)
    assert ends[0].binding == ends[1].binding
    assert ends[0].binding != second[0].binding
    assert len(ends[0].binding) >= 12


def test_altered_bytes_are_detected(ends):
    ends[0].write(b"spam")
    sealed = bytearray(ends[0].take())
    sealed[-1] ^= 1
    with pytest.raises(AuthError, match="altered"):
        ends[1].feed(bytes(sealed))


@pytest.mark.parametrize("data", [b"GET / HTTP/1.0\r\n\r\n", bytes(64), b"\x16\x03\x01\x00\x05hello"])
def test_invalid_connections_are_refused(data):
    with pytest.raises(AuthError):
        Channel(accepts=True).feed(data)


def talk(accepts, sock, secret, received):
    try:
        talk = Talk(sock, accepts, 5)
        if accepts:
            talk.prove(lambda key: Acceptor(key, 0, 0), secret)
            talk.write(b"welcome")
        else:
            talk.prove(lambda key: Connector(key, PLACE), secret)
            received.append(talk.read(7))
    except (AuthError, OSError) as error:
        received.append(error)
    finally:
        if accepts:
            sock.close()


def conversation(connectors, acceptors, between=None):
    """Return what the connector receives over a connection whose ends know these secrets."""
    received, second = [], []
    here, far = socket.socketpair()
    acceptor = threading.Thread(target=talk, args=(True, far, acceptors, second))
    acceptor.start()
    with here:
        talk(False, here, connectors, received)
    acceptor.join(60)
    return received, second


def test_only_peers_with_the_secret_are_accepted():
    assert conversation(SECRET, SECRET)[0] == [b"welcome"]
    received, second = conversation(SECRET, bytes(32))
    assert isinstance(received[0], AuthError)
    assert isinstance(second[0], (AuthError, OSError))


def test_a_man_in_the_middle_is_detected():
    """The attacker has a separate connection with each end, and relays their proofs."""
    connector, towards_connector = Channel(accepts=False), Channel(accepts=True)
    towards_acceptor, acceptor = Channel(accepts=False), Channel(accepts=True)
    meet(connector, towards_connector)
    meet(towards_acceptor, acceptor)
    one = Connector(bound_key(SECRET, connector.binding), PLACE)
    other = Acceptor(bound_key(SECRET, acceptor.binding), 0, 0)
    other.feed(one.outgoing)
    with pytest.raises(AuthError, match="does not know"):
        one.feed(other.outgoing)
