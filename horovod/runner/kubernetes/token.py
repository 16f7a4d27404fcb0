"""The token with which pods prove to the launcher that they are of its job: a text in a Secret. Pure."""

from __future__ import annotations

import hashlib
import secrets

from horovod.common.contract.secret import Secret

LEAST = 32
"""Characters."""


def make_token() -> str:
    """256 bits of chance, as text."""
    return secrets.token_hex(32)


def token_key(text: str) -> Secret:
    """The 32 bytes that it stands for: a chart's template can make texts only. Raises ValueError for one too short."""
    text = text.strip()
    if len(text) < LEAST:
        raise ValueError(
            f"HOROVOD_POD_TOKEN has {len(text)} characters; expected at least {LEAST}, from the job's Secret"
        )
    return Secret(hashlib.sha256(b"horovod pod token\0" + text.encode()).digest())
