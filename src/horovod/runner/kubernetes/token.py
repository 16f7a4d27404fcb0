"""Token with which pods prove to the launcher that they belong to its job, stored in a Secret. Pure."""

from __future__ import annotations

import hashlib
import secrets

from horovod.common.contract.private_files import Secret

LEAST = 32
"""Minimum number of characters."""


def make_token() -> str:
    """Return 256 random bits as text."""
    return secrets.token_hex(32)


def token_key(text: str) -> Secret:
    """Derive the 32-byte key from the token's text. Raises ValueError if it is too short."""
    text = text.strip()
    if len(text) < LEAST:
        raise ValueError(
            f"HOROVOD_POD_TOKEN must have at least {LEAST} characters, from the job's Secret, got {len(text)}"
        )
    return Secret(hashlib.sha256(b"horovod pod token\0" + text.encode()).digest())
