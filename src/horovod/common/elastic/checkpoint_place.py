"""Checkpoint storage in a directory or at a URL, and the list of a job's checkpoints that is stored there.

Each rank knows which checkpoints it has saved itself, but a rank that joins later does not. If it becomes rank 0 after
all earlier ranks are gone, it reads the list in the storage (``note``). Without the list, it would assume that the
job's checkpoints belong to another job. It would not remove old checkpoints, and it would not replace them after a
return to an earlier step.
"""

import contextlib
import errno
import hmac
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.elastic import checkpoint_files as files
from horovod.common.elastic.checkpoint_files import Trust

Dump = Callable[[IO[bytes]], None]
Load = Callable[[IO[bytes]], Any]
NOTE = ".horovod-job"
_LONGEST_NOTE = 1 << 20  # maximum size in bytes of the list of checkpoints


class Place(Protocol):
    """Interface of checkpoint storage, in a directory or at a URL.

    All methods can raise OSError or the file system's own errors. ``str()`` returns the name to use in messages.
    """

    def is_there(self) -> bool:
        """Return True if the checkpoint storage exists and can be listed."""

    def steps(self) -> list[int]:
        """Return the steps of all existing checkpoints, including incomplete ones, latest first."""

    def prepare(self) -> None:
        """Create the storage, and remove temporary files left by killed writers."""

    def write(self, step: int, dump: Dump) -> None:
        """Write a checkpoint atomically, replacing one of the same step. Can also raise errors from ``dump``."""

    def read(self, step: int, load: Load) -> Any:
        """Verify the checksum of a checkpoint, and return what ``load`` returns for its payload.

        Raises:
            TornCheckpointError: If the checkpoint is damaged.
            UntrustedCheckpointError: If another user might have written the checkpoint.
            FileNotFoundError: If there is no checkpoint of this step.
        """

    def remove(self, step: int) -> None:
        """Remove the checkpoint of a step, if there is one."""

    def put_aside(self, steps: list[int]) -> str:
        """Move the checkpoints of the given steps to a new subdirectory, such as ``earlier-1``, and return its name."""

    def note(self) -> bytes:
        """Return the list of the job's checkpoints, as bytes. Raises FileNotFoundError if there is none."""

    def write_note(self, text: bytes) -> None:
        """Replace the list of the job's checkpoints atomically."""


class Folder:
    """Checkpoint storage in a local or mounted directory."""

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
    """Return the elastic job's id, which all its workers share, or "" if the job is not elastic.

    A static job needs no id, because its ranks never change. Its key would not give a unique id either, because several
    jobs can share one key.

    Raises:
        ValueError: If the job's key cannot be read.
    """
    env = WorkerEnv.from_environ()
    if env.worker is None:
        return ""
    return hmac.digest(env.job_key(), b"whose checkpoints these are", "sha256")[:_TAG_BYTES].hex()


def recorded(place: Place, job: str) -> set[int]:
    """Return the steps listed for this job, or an empty set if the list is unreadable or belongs to another job."""
    try:
        note = msgspec.json.decode(place.note(), type=_Note)
    except (OSError, ValueError):
        return set()
    return set(note.steps) if note.job == job else set()


def record(place: Place, job: str, steps: Iterable[int]) -> None:
    """Store the list of the job's checkpoints. If writing raises OSError, the previous list is kept."""
    place.write_note(msgspec.json.encode(_Note(job, sorted(steps))))


# The code below stores checkpoints at a URL: in an object store such as S3, or on another fsspec file system.
#
# A checkpoint is first written to an unnamed temporary file on this host, which disappears even if the process is
# killed. Then the file is uploaded. Object stores show a file only when its upload is complete. Other file systems show
# files that are still growing, so there the file is uploaded under a temporary name and then renamed. The checksum is
# the same as on disk (checkpoint_files.py) and is verified before anything is loaded.

# Protocols of fsspec for which an interrupted upload leaves no visible file.
_WHOLE = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "ocilake", "r2", "tos", "obs", "memory"}
)
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "'horovod[s3]'"),
    **dict.fromkeys(("gs", "gcs"), "'horovod[gs]'"),
    **dict.fromkeys(("az", "abfs", "abfss"), "'horovod[abfs]'"),
}

_PASSWORD = re.compile(r"(:/{1,2}[^/:@]*):[^/]*@")


def without_password(text: str) -> str:
    """Replace passwords in URLs in a message with ``***``, as in ``sftp://user:***@host/directory``."""
    return _PASSWORD.sub(r"\1:***@", text)


class Objects:
    """Checkpoint storage at a URL. Implements ``Place``."""

    def __init__(self, url: str, options: Mapping[str, Any], trust: Trust = files.OWN) -> None:
        """Open the file system of the URL.

        Args:
            url: URL that fsspec supports.
            options: Options for fsspec.
            trust: Rules that decide which checkpoints may be read.

        Raises:
            ImportError: If a package is missing. The message names the package.
            ValueError: If fsspec does not support the URL.
            Exception: If the file system connects immediately and the connection fails; the file system's error.
        """
        self._trust = trust
        shown = without_password(url)
        self._shown = shown.rstrip("/")
        protocol = url.partition("://")[0].partition("::")[0].lower()
        advice = f"pip install {_PACKAGES.get(protocol, 'fsspec, and what fsspec names for ' + protocol)}"
        try:
            import fsspec
        except ImportError:
            raise ImportError(f"directory is {shown!r}, a URL, for which fsspec is needed: {advice}") from None
        try:
            self._fs, path = fsspec.core.url_to_fs(url, **options)
        except ImportError as error:
            reason = without_password(str(error))
            raise ImportError(f"directory is {shown!r}, of which fsspec says: {reason} ({advice})") from error
        except (ValueError, TypeError) as error:
            raise ValueError(f"directory is {shown!r}, of which fsspec says: {without_password(str(error))}") from error
        self._path = str(path).rstrip("/")
        if not self._path:
            raise ValueError(f"directory must be a URL such as s3://bucket/name, got {shown!r}, which names no bucket")
        protocols = self._fs.protocol
        self._appears_whole = not _WHOLE.isdisjoint([protocols] if isinstance(protocols, str) else protocols)
        self._renames = not self._appears_whole and _renames(self._fs)

    def __str__(self) -> str:
        return self._shown

    def is_there(self) -> bool:
        return True  # object stores have no directories, so a URL always counts as existing

    def steps(self) -> list[int]:
        return files.steps_of(self._names())

    def prepare(self) -> None:
        if self._appears_whole:
            return
        self._fs.makedirs(self._path, exist_ok=True)
        for name in self._names():
            if files.is_unfinished(name) and self._age(name) > files.ABANDONED:
                self._remove(name)

    def write(self, step: int, dump: Dump) -> None:
        with _unnamed() as (file, path):
            files.write_into(file, step, dump, self._trust)
            self._send(path, files.name_of(step))

    def read(self, step: int, load: Load) -> Any:
        name = files.name_of(step)
        with _unnamed() as (file, path):
            self._fs.invalidate_cache()
            self._fs.get_file(self._at(name), path)
            return files.read_from(file, f"{self._shown}/{name}", step, load, self._trust)

    def remove(self, step: int) -> None:
        self._remove(files.name_of(step))

    def put_aside(self, steps: list[int]) -> str:
        there, number = set(self._names()), 1
        while f"earlier-{number}" in there:
            number += 1
        folder = f"earlier-{number}"
        if not self._appears_whole:
            self._fs.makedirs(self._at(folder), exist_ok=True)
        for step in steps:
            name = files.name_of(step)
            try:
                self._move(self._at(name), self._at(f"{folder}/{name}"))
            except FileNotFoundError:
                if self._is_there(self._at(name)):
                    raise
                # If the file no longer exists, another process has removed it, so ignore the error.
        return f"{self._shown}/{folder}"

    def note(self) -> bytes:
        self._fs.invalidate_cache()
        return bytes(self._fs.cat_file(self._at(NOTE)))

    def write_note(self, text: bytes) -> None:
        with _unnamed() as (file, path):
            file.write(text)
            self._send(path, NOTE)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _names(self) -> list[str]:
        """Return the names of all files and directories in the checkpoint directory."""
        # Clear fsspec's cached listings, because other processes might have written files since.
        self._fs.invalidate_cache()
        try:
            return [str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(self._path, detail=False)]
        except FileNotFoundError:
            return []

    def _send(self, path: str, name: str) -> None:
        if self._appears_whole:
            self._fs.put_file(path, self._at(name))
            return
        target = self._at(name)
        unfinished = self._unfinished(name)
        try:
            self._fs.put_file(path, unfinished)
            in_place = self._moved(unfinished, target)
        except BaseException:
            self._discard(unfinished)
            raise
        if not in_place:
            self._exchange(unfinished, target, self._unfinished(name))

    def _unfinished(self, name: str) -> str:
        """Return a temporary path for uploading the file ``name``."""
        stem = name.removesuffix(".ckpt") if name != NOTE else "job"
        return self._at(f".{stem}.{os.getpid()}.{secrets.token_hex(4)}.tmp")

    def _moved(self, unfinished: str, target: str) -> bool:
        """Rename the file. Return False if the target exists and cannot be overwritten, as on HDFS."""
        if not self._renames and self._is_there(target):
            return False  # do not copy the file over the target, because an interrupted copy would damage it
        try:
            self._move(unfinished, target)
        except Exception:
            if self._is_there(unfinished) and self._is_there(target):
                return False
            raise
        return True

    def _exchange(self, unfinished: str, target: str, before: str) -> None:
        """Replace an existing file on file systems whose rename cannot overwrite.

        A complete copy exists at all times.

        Args:
            unfinished: Path of the new file.
            target: Path of the old file, which the new file replaces.
            before: Path to which the old file is moved temporarily.
        """
        aside = False
        try:
            self._move(target, before)
            aside = True
            self._move(unfinished, target)
        except BaseException:
            if aside or not self._is_there(target):
                self._move(before, target)
            self._discard(unfinished)
            self._discard(before)
            raise
        self._discard(before)

    def _move(self, path: str, new: str) -> None:
        """Move one file, and check that the file system has moved it.

        This replaces fsspec's default ``mv``, which treats paths as patterns: with ``[`` or ``*`` in a path, it would
        move nothing or the wrong files.

        Raises:
            FileExistsError: If the file system has not moved the file.
        """
        if not self._renames:
            self._fs.cp_file(path, new)
            self._fs.rm_file(path)
            return
        self._fs.mv(path, new)
        if self._is_there(path):  # WebHDFS can fail to move a file without raising an error
            raise FileExistsError(errno.EEXIST, "is not renamed", path, None, new)

    def _is_there(self, path: str) -> bool:
        """Return True if the file exists. Unlike fsspec's ``exists``, this method raises the file system's errors."""
        self._fs.invalidate_cache()
        try:
            self._fs.info(path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or error.errno == errno.ENOENT:
                return False
            raise
        return True

    def _discard(self, path: str) -> None:
        with contextlib.suppress(Exception):
            self._fs.rm_file(path)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def _age(self, name: str) -> float:
        """Return the seconds since the file was last modified, or 0 if the file system does not report the time."""
        try:
            return time.time() - float(self._fs.modified(self._at(name)).timestamp())
        except (FileNotFoundError, NotImplementedError):
            return 0.0


def _renames(filesystem: Any) -> bool:
    """Return True if the file system, or the one wrapped by an fsspec cache, implements ``mv``."""
    from fsspec import AbstractFileSystem

    while isinstance(inner := getattr(filesystem, "fs", None), AbstractFileSystem):
        filesystem = inner
    return type(filesystem).mv is not AbstractFileSystem.mv


@contextlib.contextmanager
def _unnamed() -> Iterator[tuple[Any, str]]:
    """Create a temporary file that is deleted when it is closed or the process is killed.

    Yields:
        The open file, and a path under which any thread can open it while it exists.
    """
    file: IO[bytes]
    with tempfile.TemporaryFile(prefix="horovod-checkpoint-", buffering=0) as file:
        yield file, f"/proc/self/fd/{file.fileno()}"
