"""How connections between hosts are encrypted: with which cipher, and by which library.

The package links no library for it and contains none. OpenSSL's libcrypto is the one that Python itself has loaded, as
a rule, and libsodium the one that comes with pyzmq; either is kept up to date by the system or by pip. The engine loads
it by its path and tries it on published examples (core/transport/crypto.h).
"""

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.common.contract.secret import Secret
from horovod.common.security.auth import Ephemeral

NAMES = ("aes-256-gcm", "chacha20-poly1305")  # a name's place, from 1, is its number in the handshake

# Where nothing is loaded yet: names that the system's loader may know.
_SONAMES = ("libcrypto.so.3", "libcrypto.so.1.1", "libsodium.so.26", "libsodium.so.23")
_ADVICE = (
    "connections between hosts are encrypted; accepted are OpenSSL's libcrypto from 1.1.1 on (Debian and Ubuntu: "
    "`apt-get install libssl3`, Red Hat: `dnf install openssl-libs`) and libsodium (`pip install --force-reinstall "
    "pyzmq`: its wheels bring it)"
)


@dataclass(frozen=True)
class Cipher:
    """What one rank encrypts with."""

    name: str
    library: str
    """Path of the library."""

    def ephemeral(self) -> Ephemeral:
        """A fresh key pair for one connection."""
        from horovod import _core

        secret = Secret(secrets.token_bytes(32))
        return Ephemeral(
            _core.public_key(self.library, secret),
            lambda theirs: _core.shared_key(self.library, secret, theirs),
            1 + NAMES.index(self.name),
        )


def available() -> dict[str, str]:
    """Path of a library by each cipher that this process can use, the faster one on this processor first."""
    from horovod import _core

    found: dict[str, str] = {}
    for path in [*_loaded(), *_SONAMES]:
        with contextlib.suppress(ValueError):  # not there, or of a version that is of no use
            for name in _core.ciphers(path):
                found.setdefault(name, path)
        if len(found) == len(NAMES):
            break
    return found


def _loaded() -> list[str]:
    """Libraries of this process that may serve, OpenSSL's first."""
    # These modules load them. A Python may have been built without OpenSSL, or with it inside of itself.
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
    """The cipher of a job: ``wish`` unless it is "auto", else the first of rank 0's that all ranks have.

    ``labels``, ``offered``: by rank, how to name it and what it can use, in its order. Raises ValueError, on all ranks
    alike, naming the rank that cannot, and what to do.
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
