"""Whose checkpoints are read. They are pickles: reading one runs what its writer has put into it.

A file of another user is refused, and one that every user can write to. On file systems where all files seem to belong
to one user, or to be open to all, that says nothing, so what a file of our own would look like there is looked at.

A key settles it everywhere, in object stores too: checkpoints carry a MAC, and others are refused.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from horovod.common.contract.settings import Settings
from horovod.common.contract.worker_env import read_key_file

_OWNERS, _KEY_FILE = "HOROVOD_CHECKPOINT_OWNERS", "HOROVOD_CHECKPOINT_KEY_FILE"
PLAIN, SEALED = b"HVDCKPT1", b"HVDCKPT2"
"""How a checkpoint ends: with a checksum, or with a MAC, before it."""


class UntrustedCheckpointError(ValueError):
    """Another user may have written the checkpoint."""


class Sum(Protocol):
    """What is made of the bytes of a checkpoint."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


@dataclass(frozen=True)
class Trust:
    """Which checkpoints are read, and how they are written.

    Args:
        any_owner: Read those of other users, too.
        key_file: The file with a key, empty: none. Checkpoints are sealed with it; those without its MAC are refused,
            whoever has written them.
    """

    any_owner: bool = False
    key_file: str = ""

    @classmethod
    def from_settings(cls, settings: Settings) -> Trust:
        """Raises ValueError naming the variable of a key file that cannot be used.

        One that is not there is an error when a checkpoint is read or written: ranks on other hosts do neither.
        """
        made = cls(settings.text(_OWNERS) == "any", settings.text(_KEY_FILE))
        if made.key_file and os.path.exists(made.key_file):
            _ = made.key
        return made

    @functools.cached_property
    def key(self) -> bytes | None:
        """The key. Raises ValueError naming the variable of a file that cannot be used."""
        return bytes(read_key_file(self.key_file, _KEY_FILE)) if self.key_file else None

    @property
    def magic(self) -> bytes:
        """The end of a checkpoint that is written."""
        return PLAIN if self.key is None else SEALED

    def sum(self, step: int) -> Sum:
        """A sum over the checkpoint of a step; with a key its MAC, so that one step's is no other's."""
        if self.key is None:
            return hashlib.sha256()
        return hmac.new(self.key, b"horovod checkpoint of step %d\0" % step, "sha256")

    def check_end(self, magic: bytes, name: str) -> None:
        """Raises UntrustedCheckpointError for an end of the other kind."""
        if magic == SEALED and self.key is None:
            raise UntrustedCheckpointError(f"{name} is sealed with a key; {_KEY_FILE} has to name the file with it")
        if magic == PLAIN and self.key is not None:
            raise UntrustedCheckpointError(
                f"{name} is not sealed with the key in {_KEY_FILE}, so anyone may have written it; unset the variable "
                "to read it all the same"
            )

    def check_owner(self, fd: int, name: str, made_here: Callable[[], os.stat_result]) -> None:
        """Raises UntrustedCheckpointError for the file of another user, or one that every user can write to.

        Args:
            fd: The file.
            name: What the error calls it.
            made_here: Makes a file beside it, with mode 0600, removes it and returns its status. May raise OSError.
        """
        if self.any_owner or self.key is not None:
            return
        found = os.fstat(fd)
        theirs = found.st_uid not in (os.geteuid(), 0)
        if not theirs and not found.st_mode & stat.S_IWOTH:
            return
        try:
            own = made_here()
        except OSError:
            own = None
        if own is not None and own.st_uid == found.st_uid and (own.st_mode & stat.S_IWOTH or theirs):
            return
        who = f"belongs to user {found.st_uid}, not to {os.geteuid()}" if theirs else "can be written by every user"
        raise UntrustedCheckpointError(
            f"{name} {who}, and a checkpoint can run anything as it is read. If its writer is trusted, set "
            f"{_OWNERS}=any, or make the file this user's (chown, chmod o-w)"
        )
