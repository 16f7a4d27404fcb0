"""Handshakes against the published examples, which another implementation has made after docs/wire.md."""

import secrets
from pathlib import Path

import pytest

from horovod import _core
from horovod.common.security import auth, cipher
from horovod.common.security.auth import Acceptor, Connector, Ephemeral, Inviter, Place, derive_key
from tests.vectors import wire

PLACE = Place(wire.PURPOSE, wire.EPOCH, wire.CONNECTOR, wire.ACCEPTOR)
FILE = Path(wire.__file__).with_name("wire.txt")


def examples():
    """{section: {name: value}}."""
    found = {}
    for line in FILE.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line[1:-1], {})
        elif " = " in line or line.endswith(" ="):
            name, _, digits = line.partition(" =")
            section[name] = bytes.fromhex(digits)
    return found


@pytest.mark.heavy  # needs a package that only the second tier installs
def test_the_published_file_is_current():
    pytest.importorskip("cryptography")
    assert FILE.read_text() == wire.generate(), "run: python -m tests.vectors.wire > tests/vectors/wire.txt"


@pytest.mark.parametrize("name", wire.CIPHERS)
def test_a_handshake(name, monkeypatch):
    known = examples()
    expected = known[f"handshake {name}"]
    key = derive_key(known["job"]["key"], "links")
    assert key == expected["key"]

    def side(who):
        """What makes its part of the connection: given nonces, or the key pairs of given secrets."""
        if name not in cipher.NAMES:
            return lambda purpose: None
        secret, library = known["job"][f"{who}_secret"], cipher.available()[name]
        pair = Ephemeral(
            _core.public_key(library, secret),
            lambda theirs: _core.shared_key(library, secret, theirs),
            1 + cipher.NAMES.index(name),
        )
        return lambda purpose: pair

    if name in cipher.NAMES and name not in cipher.available():
        pytest.skip(f"no library here has {name}")
    nonces = [expected["connector_nonce"], expected["acceptor_nonce"]]
    monkeypatch.setattr(secrets, "token_bytes", lambda count: nonces.pop(0))
    connector = Connector(key, PLACE, side("connector"))
    acceptor = Acceptor(key, wire.EPOCH, wire.ACCEPTOR, side("acceptor"))
    for message, sender, receiver in (
        ("hello", connector, acceptor),
        ("challenge", acceptor, connector),
        ("proof", connector, acceptor),
        ("welcome", acceptor, connector),
    ):
        assert sender.outgoing == expected[message], message
        sent, sender.outgoing = sender.outgoing, b""
        receiver.feed(sent)
    assert connector.session.send == acceptor.session.receive == expected["connector_sends_with"]
    assert connector.session.receive == acceptor.session.send == expected["acceptor_sends_with"]


def test_an_invitation(monkeypatch):
    known = examples()["job"]
    monkeypatch.setattr(secrets, "token_bytes", lambda count: known["acceptor_secret"])
    key = derive_key(known["key"], "links")
    assert Inviter(key, PLACE).outgoing == known["invitation"]
    assert auth._HELLO.size + 32 == len(known["invitation"])
