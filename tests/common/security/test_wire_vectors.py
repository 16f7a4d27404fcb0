"""Handshakes against the published examples, which another implementation has made after docs/wire.md."""

import secrets
from pathlib import Path

import pytest

from horovod import _core
from horovod.common.security import auth, cipher
from horovod.common.security.auth import Acceptor, Connector, Ephemeral, Inviter, Place, derive_key
from tests.vectors import ciphers, wire

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


def test_the_published_file_is_current():
    assert FILE.read_text() == wire.generate(), "run: python -m tests.vectors.wire > tests/vectors/wire.txt"


def test_the_other_implementation_keeps_to_the_standards():
    """RFC 7748, 6.1; McGrew and Viega, The Galois/Counter Mode of Operation, test case 16; RFC 8439, 2.8.2."""
    h = bytes.fromhex
    alice = h("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob_public = h("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    assert ciphers.x25519(alice).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    shared = ciphers.x25519(alice, bob_public)
    assert shared.hex() == "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    key = h("feffe9928665731c6d6a8f9467308308" * 2)
    text = h(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525"
        "b16aedf5aa0de657ba637b39"
    )
    extra = h("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    sealed, tag = ciphers.aes_256_gcm(key, h("cafebabefacedbaddecaf888"), extra, text)
    assert sealed.hex().startswith("522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa")
    assert tag.hex() == "76fc6ece0f4e1768cddf8853bb2d551b"
    ladies = b"Ladies and Gentlemen of the class of '99: "
    tip = b"If I could offer you only one tip for the future, sunscreen would be it."
    key, extra = bytes(range(0x80, 0xA0)), h("50515253c0c1c2c3c4c5c6c7")
    sealed, tag = ciphers.chacha20_poly1305(key, h("070000004041424344454647"), extra, ladies + tip)
    assert sealed.hex().startswith("d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6")
    assert tag.hex() == "1ae10b594f09e26a7e902ecbd0600691"


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
