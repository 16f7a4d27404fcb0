"""Choose the cipher for connections between hosts, and the library that implements it.

This package neither links nor contains a crypto library. Python itself usually loads OpenSSL's libcrypto, and pyzmq
contains libsodium. The system or pip keeps both up to date. The engine loads one of them by its path and verifies it
with published test vectors (core/transport/crypto.h).
"""

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.common.contract.private_files import Secret
from horovod.common.security.auth import Ephemeral

# In the handshake, a cipher's number is its position in this tuple, counted from 1.
NAMES = ("aes-256-gcm", "chacha20-poly1305")

# Names of libraries to load if this process has not yet loaded a suitable one.
_SONAMES = ("libcrypto.so.3", "libcrypto.so.1.1", "libsodium.so.26", "libsodium.so.23")
_ADVICE = (
    "connections between hosts are encrypted; install OpenSSL's libcrypto 1.1.1 or later (Debian and Ubuntu: "
    "`apt-get install libssl3`, Red Hat: `dnf install openssl-libs`) or libsodium (`pip install --force-reinstall "
    "pyzmq`: its wheels contain it)"
)


@dataclass(frozen=True)
class Cipher:
    """Cipher that a rank uses, and the path of the library that implements it."""

    name: str
    library: str
    """Path of the library."""

    def ephemeral(self) -> Ephemeral:
        """Create an ephemeral key pair for one connection."""
        from horovod import _core

        secret = Secret(secrets.token_bytes(32))
        return Ephemeral(
            _core.public_key(self.library, secret),
            lambda theirs: _core.shared_key(self.library, secret, theirs),
            1 + NAMES.index(self.name),
        )


def available() -> dict[str, str]:
    """Return the ciphers available to this process, fastest first, with the paths of their libraries."""
    from horovod import _core

    found: dict[str, str] = {}
    for path in [*_loaded(), *_SONAMES]:
        with contextlib.suppress(ValueError):  # the library may be missing, or its version may be unsuitable
            for name in _core.ciphers(path):
                found.setdefault(name, path)
        if len(found) == len(NAMES):
            break
    return found


def _loaded() -> list[str]:
    """Return the paths of suitable crypto libraries that this process has already loaded, OpenSSL's first."""
    # Import modules that link to OpenSSL or libsodium, so that the process loads these libraries. Importing _hashlib
    # loads no library if Python lacks OpenSSL or links it statically.
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
    """Choose the job's cipher: ``wish``, or if it is "auto", the first of rank 0's ciphers that all ranks support.

    Args:
        labels: Names of the ranks for messages.
        offered: Ciphers that each rank can use, in its order of preference.
        wish: Value of HOROVOD_CIPHER.

    Raises:
        ValueError: If a rank cannot use the cipher, on all ranks. The message names the rank and contains advice.
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
