"""Rules that decide which checkpoints may be read.

A checkpoint is a pickle, so loading it executes code chosen by the process that wrote it.

Files are rejected if another user owns them or if every user can write to them. Some file systems report one owner for
all files, or show all files as writable by everyone. There, a file is accepted if a newly created file has the same
owner and mode. If a key is set, checkpoints must carry a MAC, in object stores as well.
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
"""Last bytes of a checkpoint, which tell whether a checksum or a MAC precedes them."""


class UntrustedCheckpointError(ValueError):
    """Error for a checkpoint that another user might have written."""


class Sum(Protocol):
    """Checksum or MAC over the bytes of a checkpoint."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


@dataclass(frozen=True)
class Trust:
    """Rules for reading checkpoints, and the checksum or MAC for writing them.

    Args:
        any_owner: True to read checkpoints of other users too.
        key_file: Path of the file with the MAC's key. Checkpoints without this MAC are rejected. Empty: no MAC.
    """

    any_owner: bool = False
    key_file: str = ""

    @classmethod
    def from_settings(cls, settings: Settings) -> Trust:
        """Create the rules from the settings. Raises ValueError if the key file cannot be used.

        A missing key file is an error only when a checkpoint is read or written.
        """
        made = cls(settings.text(_OWNERS) == "any", settings.text(_KEY_FILE))
        if made.key_file and os.path.exists(made.key_file):
            _ = made.key
        return made

    @functools.cached_property
    def key(self) -> bytes | None:
        """Key of the MAC, or None without a key file. Raises ValueError if the key file cannot be used."""
        return bytes(read_key_file(self.key_file, _KEY_FILE)) if self.key_file else None

    @property
    def magic(self) -> bytes:
        """Last bytes of each written checkpoint, which identify the format."""
        return PLAIN if self.key is None else SEALED

    def sum(self, step: int) -> Sum:
        """Return a new checksum or MAC for the checkpoint of a step.

        A MAC covers the step too, so a checkpoint cannot be renamed to pass as another step's.
        """
        if self.key is None:
            return hashlib.sha256()
        return hmac.new(self.key, b"horovod checkpoint of step %d\0" % step, "sha256")

    def check_end(self, magic: bytes, name: str) -> None:
        """Raise UntrustedCheckpointError if a file has a checksum where a MAC is required, or a MAC without a key."""
        if magic == SEALED and self.key is None:
            raise UntrustedCheckpointError(f"{name} is sealed with a key; {_KEY_FILE} has to name the file with it")
        if magic == PLAIN and self.key is not None:
            raise UntrustedCheckpointError(
                f"{name} is not sealed with the key in {_KEY_FILE}, so anyone may have written it; unset the variable "
                "to read it all the same"
            )

    def needs_copy(self, fd: int) -> bool:
        """Return True if other users could change a file after its MAC has been verified."""
        found = os.fstat(fd)
        by_others = found.st_uid not in (os.geteuid(), 0) or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        return self.key is not None and by_others

    def check_owner(self, fd: int, name: str, made_here: Callable[[], os.stat_result]) -> None:
        """Raise UntrustedCheckpointError if another user owns the file or every user can write to it.

        Args:
            fd: Descriptor of the file.
            name: Name of the file in the error message.
            made_here: Function that creates a file with mode 0600 in the same directory, removes it and returns its
                status, for comparison. Can raise OSError.
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
