"""Storage of checkpoints: the interface, its implementation for directories, and the record of a job's files.

Each rank knows which checkpoints it has saved itself. A rank that joins later may become rank 0 when all earlier ranks
are gone. It then reads the record in the directory. Without the record, it would mistake the job's files for another
job's. It would then neither remove old files nor replace them after a return to an earlier step.
"""

import contextlib
import hmac
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.elastic import checkpoint_files as files
from horovod.common.elastic.checkpoint_trust import Trust

Dump = Callable[[IO[bytes]], None]
Load = Callable[[IO[bytes]], Any]
NOTE = ".horovod-job"
_LONGEST_NOTE = 1 << 20  # bytes


class Place(Protocol):
    """Storage of checkpoints: a directory or a URL.

    All methods may raise OSError, or a file system's own errors. ``str()`` returns the place's name for messages.
    """

    def is_there(self) -> bool:
        """Return True if the storage exists, so that it can be searched for checkpoints."""

    def steps(self) -> list[int]:
        """Return the steps of the existing checkpoints, complete or not, latest first."""

    def prepare(self) -> None:
        """Create the storage, and remove unfinished files of killed writers."""

    def write(self, step: int, dump: Dump) -> None:
        """Write a checkpoint atomically, replacing one of the same step. Errors of ``dump`` are raised too."""

    def read(self, step: int, load: Load) -> Any:
        """Verify the checksum of a checkpoint, and return what ``load`` returns for its payload.

        Raises:
            TornCheckpointError: If the checkpoint is damaged.
            UntrustedCheckpointError: If another user may have written it.
            FileNotFoundError: If there is no checkpoint of this step.
        """

    def remove(self, step: int) -> None:
        """Remove a checkpoint; no effect if there is none."""

    def put_aside(self, steps: list[int]) -> str:
        """Move the checkpoints of these steps to a new subdirectory, ``earlier-1`` or higher; return its name."""

    def note(self) -> bytes:
        """Return the note stored beside the checkpoints. Raises FileNotFoundError if there is none."""

    def write_note(self, text: bytes) -> None:
        """Replace the note atomically."""


class Folder:
    """Storage of checkpoints in a local or mounted directory."""

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


_TAG_BYTES = 16


class _Note(msgspec.Struct):
    job: str
    steps: list[int]


def job_tag() -> str:
    """Return an id of the elastic job, which is the same on all its workers; "" if the job is not elastic.

    Jobs that are not elastic need no id, because their ranks do not change. Their keys would not give a unique one,
    because a user may give the same key to every job.

    Raises:
        ValueError: If the job's key cannot be read.
    """
    env = WorkerEnv.from_environ()
    if env.worker is None:
        return ""
    return hmac.digest(env.job_key(), b"whose checkpoints these are", "sha256")[:_TAG_BYTES].hex()


def recorded(place: Place, job: str) -> set[int]:
    """Return the steps that the record lists for this job; empty if it is another job's or unreadable."""
    try:
        told = msgspec.json.decode(place.note(), type=_Note)
    except (OSError, ValueError):
        return set()
    return set(told.steps) if told.job == job else set()


def record(place: Place, job: str, steps: Iterable[int]) -> None:
    """Record which steps' checkpoints belong to the job. If this raises OSError, the previous record stays."""
    place.write_note(msgspec.json.encode(_Note(job, sorted(steps))))
