"""Byte-level examples of connections between ranks, implemented independently from docs/wire.md alone.

    python -m tests.vectors.wire > tests/vectors/wire.txt

Uses the package cryptography. Tests compare the real implementations, in Python and C++, with that file.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator

JOB_KEY = bytes(range(32))
PURPOSE, EPOCH, CONNECTOR, ACCEPTOR = 3, 7, 5, 2
CIPHERS = {"none": 0, "aes-256-gcm": 1, "chacha20-poly1305": 2}
SECRETS = {"connector": bytes(range(64, 96)), "acceptor": bytes(range(96, 128))}
RECORDS_PER_KEY = 2
TEXTS = [b"a", b"the first record after that", bytes(range(256)) * 2, b"another", b"and under the third key"]


def x25519(secret: bytes, point: bytes = b"") -> bytes:
    """Return the public key of a secret, or the secret shared with another public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    own = X25519PrivateKey.from_private_bytes(secret)
    return own.exchange(X25519PublicKey.from_public_bytes(point)) if point else own.public_key().public_bytes_raw()


def seal(cipher: str, key: bytes, nonce: bytes, extra: bytes, text: bytes) -> bytes:
    """Return the encrypted text, then its tag."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

    return (AESGCM if cipher == "aes-256-gcm" else ChaCha20Poly1305)(key).encrypt(nonce, text, extra)


def hkdf(secret: bytes, salt: bytes, label: bytes) -> bytes:
    """Return 32 bytes of RFC 5869 with SHA-256."""
    return hmac.digest(hmac.digest(salt, secret, "sha256"), label + b"\x01", "sha256")


def mac(key: bytes, label: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, label + b"\0" + b"".join(parts), "sha256")


def hello(cipher: str, nonce: bytes, flag: int = 0, source: int = CONNECTOR, target: int = ACCEPTOR) -> bytes:
    head = b"HVD2" + bytes([PURPOSE | flag, CIPHERS[cipher], 0, 0])
    return head + struct.pack("<QII", EPOCH, source, target) + nonce


def handshake(cipher: str) -> dict[str, bytes]:
    """Return all messages and keys of one connection."""
    key = hkdf(JOB_KEY, b"horovod job key", b"links")
    if cipher == "none":
        nonces = {side: secret[::-1] for side, secret in SECRETS.items()}
        shared = b""
    else:
        nonces = {side: x25519(secret) for side, secret in SECRETS.items()}
        shared = x25519(SECRETS["connector"], nonces["acceptor"])
    first = hello(cipher, nonces["connector"])
    challenge = nonces["acceptor"] + mac(key, b"accept", first, nonces["acceptor"])
    proof = mac(key, b"connect", first, challenge)
    salt = hashlib.sha256(first + challenge + proof).digest()
    return {
        "key": key,
        **{f"{side}_nonce": nonce for side, nonce in nonces.items()},
        "shared_secret": shared,
        "hello": first,
        "challenge": challenge,
        "proof": proof,
        "welcome": mac(key, b"welcome", first, proof),
        "connector_sends_with": hkdf(key + shared, salt, b"connector"),
        "acceptor_sends_with": hkdf(key + shared, salt, b"acceptor"),
    }


def invitation() -> bytes:
    key = hkdf(JOB_KEY, b"horovod job key", b"links")
    first = hello("none", SECRETS["acceptor"], 128, ACCEPTOR, CONNECTOR)
    return first + mac(key, b"invite", first)


def records(cipher: str, key: bytes) -> Iterator[bytes]:
    """Return the texts as records; a new key after every RECORDS_PER_KEY."""
    for number, text in enumerate(TEXTS):
        if number and number % RECORDS_PER_KEY == 0:
            key = seal(cipher, key, bytes(4) + b"\xff" * 8, b"", bytes(32))[:32]
        length = len(text).to_bytes(4, "little")
        nonce = bytes(4) + (number % RECORDS_PER_KEY).to_bytes(8, "little")
        yield length + seal(cipher, key, nonce, length, text)


def generate() -> str:
    """Yield sections in brackets, then lines of a name and a value in hexadecimal digits."""
    lines = ["# Made by tests/vectors/wire.py after docs/wire.md; values in hexadecimal digits.", "", "[job]"]
    lines += [f"key = {JOB_KEY.hex()}"]
    lines += [f"{side}_secret = {secret.hex()}" for side, secret in SECRETS.items()]
    lines += [f"invitation = {invitation().hex()}"]
    for cipher in CIPHERS:
        lines += ["", f"[handshake {cipher}]"]
        vector = handshake(cipher)
        lines += [f"{name} = {value.hex()}" for name, value in vector.items()]
        if cipher != "none":
            lines += ["", f"[records {cipher}]", f"key = {vector['connector_sends_with'].hex()}"]
            lines += [f"text_{number} = {text.hex()}" for number, text in enumerate(TEXTS)]
            made_records = enumerate(records(cipher, vector["connector_sends_with"]))
            lines += [f"record_{number} = {record.hex()}" for number, record in made_records]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(generate(), end="")
