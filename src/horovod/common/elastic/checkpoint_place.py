"""Storage of checkpoints: the interface, its implementation for directories, and the record of a job's checkpoints.

Each rank knows which checkpoints it has saved itself, but a rank that joins later does not. When all earlier ranks are
gone, that rank can become rank 0. It then reads the record in the directory. Without the record, it would assume that
the job's checkpoints belong to another job. It would not remove old checkpoints, and it would not replace them after a
return to an earlier step.
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
_LONGEST_NOTE = 1 << 20  # maximum size of the record in bytes


class Place(Protocol):
    """Storage of checkpoints: a directory or a URL.

    All methods can raise OSError or the file system's own errors. ``str()`` returns the name to use in messages.
    """

    def is_there(self) -> bool:
        """Return True if the storage exists and can be searched for checkpoints."""

    def steps(self) -> list[int]:
        """Return the steps of all existing checkpoints, including incomplete ones, latest first."""

    def prepare(self) -> None:
        """Create the storage, and remove temporary files of killed writers."""

    def write(self, step: int, dump: Dump) -> None:
        """Write a checkpoint atomically, replacing one of the same step. Errors of ``dump`` are raised too."""

    def read(self, step: int, load: Load) -> Any:
        """Verify the checksum of a checkpoint, and return what ``load`` returns for its payload.

        Raises:
            TornCheckpointError: If the checkpoint is damaged.
            UntrustedCheckpointError: If another user might have written the checkpoint.
            FileNotFoundError: If there is no checkpoint of this step.
        """

    def remove(self, step: int) -> None:
        """Remove the checkpoint of a step. Has no effect if there is none."""

    def put_aside(self, steps: list[int]) -> str:
        """Move the checkpoints of these steps to a new subdirectory, such as ``earlier-1``, and return its name."""

    def note(self) -> bytes:
        """Return the record of the job's checkpoints as bytes. Raises FileNotFoundError if there is none."""

    def write_note(self, text: bytes) -> None:
        """Replace the record of the job's checkpoints atomically."""


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
    """Return an id that all workers of an elastic job share, or "" if the job is not elastic.

    A job that is not elastic needs no id, because its ranks do not change. An id derived from its key would not be
    unique, because a user can use the same key for every job.

    Raises:
        ValueError: If the job's key cannot be read.
    """
    env = WorkerEnv.from_environ()
    if env.worker is None:
        return ""
    return hmac.digest(env.job_key(), b"whose checkpoints these are", "sha256")[:_TAG_BYTES].hex()


def recorded(place: Place, job: str) -> set[int]:
    """Return the steps recorded for this job, or no steps if the record is unreadable or belongs to another job."""
    try:
        told = msgspec.json.decode(place.note(), type=_Note)
    except (OSError, ValueError):
        return set()
    return set(told.steps) if told.job == job else set()


def record(place: Place, job: str, steps: Iterable[int]) -> None:
    """Record the steps of the job's checkpoints. If writing raises OSError, the previous record is kept."""
    place.write_note(msgspec.json.encode(_Note(job, sorted(steps))))
