"""Encryption of connections between hosts: choice of the cipher and of its library.

The package neither links nor contains a crypto library. OpenSSL's libcrypto is usually loaded by Python itself, and
libsodium comes with pyzmq; the system or pip keeps them up to date. The engine loads one by its path and tests it with
published examples (core/transport/crypto.h).
"""

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.common.contract.private_files import Secret
from horovod.common.security.auth import Ephemeral

NAMES = ("aes-256-gcm", "chacha20-poly1305")  # the index of a name, from 1, is its number in the handshake

# Names that the system's loader may find if no library is loaded yet.
_SONAMES = ("libcrypto.so.3", "libcrypto.so.1.1", "libsodium.so.26", "libsodium.so.23")
_ADVICE = (
    "connections between hosts are encrypted; install OpenSSL's libcrypto 1.1.1 or later (Debian and Ubuntu: "
    "`apt-get install libssl3`, Red Hat: `dnf install openssl-libs`) or libsodium (`pip install --force-reinstall "
    "pyzmq`: its wheels contain it)"
)


@dataclass(frozen=True)
class Cipher:
    """Cipher that a rank uses, and its library."""

    name: str
    library: str
    """Path of the library."""

    def ephemeral(self) -> Ephemeral:
        """Return a fresh key pair for one connection."""
        from horovod import _core

        secret = Secret(secrets.token_bytes(32))
        return Ephemeral(
            _core.public_key(self.library, secret),
            lambda theirs: _core.shared_key(self.library, secret, theirs),
            1 + NAMES.index(self.name),
        )


def available() -> dict[str, str]:
    """Return the path of a library for each cipher that this process can use, fastest cipher first."""
    from horovod import _core

    found: dict[str, str] = {}
    for path in [*_loaded(), *_SONAMES]:
        with contextlib.suppress(ValueError):  # not found, or an unsuitable version
            for name in _core.ciphers(path):
                found.setdefault(name, path)
        if len(found) == len(NAMES):
            break
    return found


def _loaded() -> list[str]:
    """Return the suitable libraries in this process, OpenSSL's first."""
    # Importing these modules loads the libraries. Python may be built without OpenSSL, or with OpenSSL linked
    # statically.
    with contextlib.suppress(ImportError):
        import _hashlib  # noqa: F401
    with contextlib.suppress(ImportError):
        import zmq  # noqa: F401
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        lines = [line for line in maps if "/libcrypto" in line or "/libsodium" in line]
    paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in lines}
    files = {path.rsplit("/", 1)[-1]: path for path in sorted(paths)}
    return [
        path
        for start in ("libcrypto", "libsodium")
        for file, path in files.items()
        if file.startswith(start) and ".so" in file
    ]


def agree(labels: Sequence[str], offered: Sequence[Sequence[str]], wish: str) -> str:
    """Return the cipher of a job: ``wish`` unless it is "auto", otherwise the first of rank 0's that all ranks have.

    Args:
        labels: Names of the ranks for messages.
        offered: Ciphers that each rank can use, in its order of preference.
        wish: Value of HOROVOD_CIPHER.

    Raises:
        ValueError: On all ranks alike, if a rank cannot use the cipher; names the rank and what to do.
    """
    for label, names in zip(labels, offered, strict=True):
        if not names:
            raise ValueError(f"{label} has no library for encryption: {_ADVICE}")
    for name in offered[0] if wish == "auto" else [wish]:
        if all(name in names for names in offered):
            return name
    wished = offered[0][0] if wish == "auto" else wish
    missing = next(label for label, names in zip(labels, offered, strict=True) if wished not in names)
    raise ValueError(f"{missing} has no library for {wished}: {_ADVICE}")
