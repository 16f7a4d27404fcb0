"""Where checkpoints are: a directory, or a URL that fsspec knows. One interface, of which each kind of place is an
implementation."""

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
    """All may raise OSError, and what a file system raises in its place; ``str()`` names the place in messages."""

    def is_there(self) -> bool:
        """Can checkpoints be looked for here?"""

    def steps(self) -> list[int]:
        """Of the checkpoints that are here, whole or not, the latest first."""

    def prepare(self) -> None:
        """Makes it, and removes what writers have left behind that were killed."""

    def write(self, step: int, dump: Dump) -> None:
        """There whole or not at all, in place of one of this step. Raises what ``dump`` raises, too."""

    def read(self, step: int, load: Load) -> Any:
        """What ``load`` makes of the payload, once its checksum has been found right. Raises TornCheckpointError,
        UntrustedCheckpointError, FileNotFoundError, and what ``load`` raises."""

    def remove(self, step: int) -> None:
        """Nothing where there is none."""

    def put_aside(self, steps: list[int]) -> str:
        """Moves these into a new folder here, and returns its name: ``earlier-1`` or a higher number."""

    def note(self) -> bytes:
        """What was last noted here. Raises FileNotFoundError."""

    def write_note(self, text: bytes) -> None:
        """In place of the one before, which is there if it raises."""


class Folder:
    """A directory of this host, or of a file system that is mounted here."""

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
