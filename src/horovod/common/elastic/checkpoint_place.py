"""Interface for places that hold checkpoints, and its implementation for directories."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

from horovod.common.elastic import checkpoint_files as files
from horovod.common.elastic.checkpoint_trust import Trust

Dump = Callable[[IO[bytes]], None]
Load = Callable[[IO[bytes]], Any]
NOTE = ".horovod-job"
_LONGEST_NOTE = 1 << 20  # bytes


class Place(Protocol):
    """Place that holds checkpoints: a directory, or a URL.

    All methods may raise OSError, or a file system's own errors. ``str()`` returns the place's name for messages.
    """

    def is_there(self) -> bool:
        """Return True if the place exists, so that checkpoints can be looked for."""

    def steps(self) -> list[int]:
        """Return the steps of the existing checkpoints, complete or not, latest first."""

    def prepare(self) -> None:
        """Create the place, and remove what killed writers have left behind."""

    def write(self, step: int, dump: Dump) -> None:
        """Write a checkpoint atomically, replacing one of the same step. Also raises the errors of ``dump``."""

    def read(self, step: int, load: Load) -> Any:
        """Return what ``load`` makes of the payload, after its checksum has been verified.

        Raises:
            TornCheckpointError: If the checkpoint is damaged.
            UntrustedCheckpointError: If another user may have written it.
            FileNotFoundError: If there is none.
        """

    def remove(self, step: int) -> None:
        """Remove a checkpoint; no effect if there is none."""

    def put_aside(self, steps: list[int]) -> str:
        """Move the steps' checkpoints to a new subdirectory, ``earlier-1`` or a higher number, and return its name."""

    def note(self) -> bytes:
        """Return the note stored beside the checkpoints. Raises FileNotFoundError if there is none."""

    def write_note(self, text: bytes) -> None:
        """Replace the note atomically."""


class Folder:
    """Checkpoints in a local or mounted directory."""

    def __init__(self, path: Path, trust: Trust = files.OWN) -> None:
        self.path, self._trust = path, trust

    def __str__(self) -> str:
        return str(self.path)

    def is_there(self) -> bool:
        return self.path.is_dir()

    def steps(self) -> list[int]:
        return files.steps_in(self.path)

    def prepare(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        files.remove_unfinished(self.path)

    def write(self, step: int, dump: Dump) -> None:
        files.write(self.path, step, dump, self._trust)

    def read(self, step: int, load: Load) -> Any:
        return files.read(self.path, step, load, self._trust)

    def remove(self, step: int) -> None:
        (self.path / files.name_of(step)).unlink(missing_ok=True)

    def put_aside(self, steps: list[int]) -> str:
        return str(files.put_aside(self.path, steps))

    def note(self) -> bytes:
        with files.open_plain(self.path / NOTE) as file:
            return file.read(_LONGEST_NOTE)

    def write_note(self, text: bytes) -> None:
        path, file = files.begin(self.path, "job")
        try:
            with file:
                file.write(text)
            os.rename(path, self.path / NOTE)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            raise
