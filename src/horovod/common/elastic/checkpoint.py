"""Checkpoints of a job on disk or in an object store.

They are written in the background and atomically, and the last few are kept. A commit survives the loss of ranks; a
checkpoint also survives the end of the job. One rank writes the checkpoint, which does not depend on the number of
ranks.
"""

import atexit
import contextlib
import copy
import os
import pickle
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings
from horovod.common.elastic import checkpoint_files as files
from horovod.common.elastic.checkpoint_files import OWN
from horovod.common.elastic.checkpoint_objects import Objects, without_password
from horovod.common.elastic.checkpoint_place import Folder, Place, job_tag, record, recorded
from horovod.common.elastic.checkpoint_trust import Trust

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_URL = re.compile(f"{_SCHEME}(?:::{_SCHEME})*://")  # simplecache::s3://... is a URL, run::3 is a path
_FILE = re.compile(r"file:/+")
_LOST_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")


def place_of(directory: str | os.PathLike[str], options: Mapping[str, Any] | None = None, trust: Trust = OWN) -> Place:
    """Return the storage to which the argument ``directory`` refers.

    Args:
        directory: Path or URL.
        options: Options for fsspec with a URL.
        trust: Rules that decide which checkpoints may be read.

    Raises:
        ValueError: If the directory is a file or otherwise invalid.
        ImportError: If a package that the URL needs is missing. The message names the package.
    """
    text = os.fspath(directory)
    if not isinstance(text, str) or not text:
        raise ValueError(f"directory must be the path of a directory or a URL, got {directory!r}")
    if _FILE.match(text):
        text = _FILE.sub("/", text)
    elif isinstance(directory, str) and _URL.match(text):
        return Objects(text, options or {}, trust)
    elif not isinstance(directory, str) and _LOST_SLASH.match(text):
        raise ValueError(
            f"directory must be a string if it is a URL, got {without_password(repr(directory))}, which has lost "
            "a slash because a Path makes one slash of two"
        )
    if options:
        raise ValueError(
            f"storage_options are given for the directory {text!r}, but they are for URLs, as s3://bucket/directory"
        )
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise ValueError(f"directory must be a directory or a new name, got {text!r}, which is a file")
    return Folder(path, trust)


# The interpreter must wait at exit for the thread that writes checkpoints.
#
# Python waits for non-daemon threads, but shuts down concurrent.futures first, which file systems such as s3fs need
# even to resolve a host name. Without an earlier wait, the checkpoint would be lost.
#
# In Python 3.12.0 and 3.12.1, no thread can be started at that point, so with these versions only ``close`` is safe.
_once = threading.Lock()
_registered = False


class Writer(threading.Thread):
    """Non-daemon thread that writes checkpoints."""


def start_writer(target: Callable[[], None]) -> threading.Thread:
    """Start a thread that the interpreter waits for at exit."""
    _register()
    writer = Writer(target=target, name="horovod-checkpoint", daemon=False)
    writer.start()
    return writer


def _register() -> None:
    global _registered
    with _once:
        if _registered:
            return
        # Exit functions run in reverse order, so import this module now: it must register its function before ours.
        import concurrent.futures.thread  # noqa: F401

        # This function of Python is private. If it is missing, the wait comes too late for checkpoints at a URL.
        register = getattr(threading, "_register_atexit", atexit.register)
        with contextlib.suppress(RuntimeError):  # raised if the interpreter is already exiting
            register(_wait)
        _registered = True


def _wait() -> None:
    for thread in threading.enumerate():  # a forked child has no such thread
        if isinstance(thread, Writer):
            thread.join()


Dump = Callable[[Any, IO[bytes]], None]
Load = Callable[[IO[bytes]], Any]


class Loaded(NamedTuple):
    """Checkpoint that was read, with its step and its value."""

    step: int
    value: Any


class Checkpoint:
    """Checkpoints of one job, in a directory for this job only.

    Not thread-safe. Call ``close`` at the end, or use a ``with`` statement.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int = 3,
        *,
        writes: Callable[[], bool] = lambda: True,
        dump: Dump = pickle.dump,
        load: Load = pickle.load,
        taken: Callable[[Any], Any] = copy.deepcopy,
        job: Callable[[], str] = job_tag,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the directory of the checkpoints.

        Files of other users are rejected. If HOROVOD_CHECKPOINT_KEY_FILE is set, files that are not sealed with that
        key are rejected too (``checkpoint_trust``).

        Args:
            directory: Path, or URL that fsspec supports, such as ``s3://bucket/name``.
            keep: Number of latest checkpoints to keep.
            writes: Returns True if this rank writes checkpoints; other ranks only read them.
            dump: Serializes a value; default: pickle.
            load: Deserializes it. As with pickle, loading may execute code from the file.
            taken: Copies a value. ``save`` calls it before it returns, so that the program may then change the value.
            job: Returns an id of the job, or "" for a job whose ranks do not change. Such a job needs no id, because
                each rank knows which checkpoints belong to the job.
            storage_options: Options for fsspec with a URL, such as credentials for S3.

        Raises:
            ValueError: If ``keep`` is below 1 or the directory is a file.
            ImportError: If a package that the URL needs is missing. The message names the package.
        """
        check_at_least("keep", keep, 1)
        trust = Trust.from_settings(Settings.from_environ())
        self._place = place = place_of(directory, storage_options, trust)
        self.directory: Path | str = place.path if isinstance(place, Folder) else str(place)
        self.keep = keep
        """Number of latest checkpoints to keep."""
        self._writes = writes
        self._dump = dump
        self._load = load
        self._taken = taken
        self._job = job
        self._tag = ""
        self.torn: list[str] = []
        """Reason for each file that ``load`` has skipped."""
        self._lock = threading.Condition()
        self._next: tuple[int, Any] | None = None  # (step, value) to write next
        self._writing = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._prepared = False
        self._ours: set[int] = set()  # steps that this job has written, and all up to one it has loaded

    def save(self, step: int, value: Any) -> None:
        """Copy the value and write it in the background.

        If the writer has not started on the previous checkpoint, this one replaces it. Has no effect on ranks that do
        not write.

        If writing fails, the error is printed to stderr and training continues, because a full disk should not end a
        rank. Existing checkpoints stay, and the next call tries again. ``wait`` and ``close`` raise the error if the
        last write failed.

        Args:
            step: Step of the checkpoint, 0 or more; later checkpoints have larger steps.
            value: Value to save.

        Raises:
            ValueError: If ``step`` is not an integer of 0 or more.
        """
        check_at_least("step", step, 0)
        self._ours.add(step)  # record it on all ranks, because any may become the writer
        if not self._writes():
            return
        copied = self._taken(value)
        with self._lock:
            self._next = step, copied
            if self._thread is None:
                self._thread = start_writer(self._write_all)

    def write(self, step: int, value: Any) -> None:
        """Write the value, without a copy, and return when it is on disk. Do not combine it with ``save``.

        Raises:
            ValueError: If ``step`` is not an integer of 0 or more.
            OSError: If the checkpoint cannot be written. ``dump`` or a file system may raise other errors.
        """
        check_at_least("step", step, 0)
        self._ours.add(step)
        self._prepare(step)
        self._note(step)
        self._place.write(step, lambda file: self._dump(value, file))
        self._remove_old(step)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all saved checkpoints are on disk.

        Args:
            seconds: Maximum time to wait; None: no limit.

        Returns:
            True if they are; False after ``seconds``.

        Raises:
            OSError: If the last checkpoint could not be written. ``dump`` or a file system may raise other errors.
        """
        with self._lock:
            done = self._lock.wait_for(lambda: self._thread is None, seconds)
        self._raise_failure()
        return done

    def load(self, step: int | None = None) -> Loaded | None:
        """Return the newest complete checkpoint, or None. Incomplete ones are skipped and listed in ``torn``.

        Args:
            step: Load only the checkpoint of this step.

        Raises:
            TornCheckpointError: If the given step's checkpoint is incomplete.
            FileNotFoundError: If the given step has no checkpoint.
            UntrustedCheckpointError: If another user may have written it.
        """
        if step is not None:
            return self._load_one(step)
        self.torn = []
        for found in self._place.steps():
            try:
                return self._load_one(found)
            except files.TornCheckpointError as error:
                self.torn.append(str(error))
            except FileNotFoundError:  # the rank that writes checkpoints has just removed this one
                continue
        return None

    def _load_one(self, step: int) -> Loaded:
        loaded = Loaded(step, self._place.read(step, self._load))
        self._ours.update(one for one in self._place.steps() if one <= step)
        return loaded

    def steps(self) -> list[int]:
        """Return the steps of the existing checkpoints, complete or not, latest first."""
        return self._place.steps()

    def close(self) -> None:
        """Wait for pending writes and stop the writer. Raises the same errors as ``wait``. Idempotent."""
        self.wait()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Methods that run in the writer thread.

    def _write_all(self) -> None:
        while True:
            with self._lock:
                if self._next is None:
                    self._thread = None
                    self._lock.notify_all()
                    return
                (step, value), self._next = self._next, None
            failure: BaseException | None = None
            try:
                self.write(step, value)
            except BaseException as error:
                failure = error
                _warn(
                    f"the checkpoint of step {step} could not be written into {self.directory}: "
                    f"{type(error).__name__}: {error}; training goes on, and the next save() tries again"
                )
            with self._lock:
                self._failure = failure

    def _prepare(self, step: int) -> None:
        if not self._prepared:
            self._place.prepare()
            self._tag = self._job()
            if self._tag:
                self._ours |= recorded(self._place, self._tag)
            self._put_aside([one for one in self.steps() if one > step and one not in self._ours])
            self._prepared = True

    def _note(self, step: int) -> None:
        """Record that the step belongs to this job, before its file exists, for ranks that join later."""
        if self._tag:
            record(self._place, self._tag, {step, *self._ours.intersection(self.steps())})

    def _remove_old(self, written: int) -> None:
        """Remove this job's old checkpoints after ``written`` was completed.

        Checkpoints of later steps are removed too: training has returned to an earlier step and will not reach the same
        states again. Checkpoints that this job has neither written nor continued from are kept.
        """
        there = [step for step in self._place.steps() if step in self._ours]
        kept = [step for step in there if step <= written][: self.keep]
        for step in there:
            if step not in kept:
                self._place.remove(step)

    def _put_aside(self, steps: list[int]) -> None:
        """Move checkpoints of later steps, from which this job has not continued, to another directory.

        ``load`` would otherwise take them for the newest. They are not deleted, because they may be a user's only
        copies.
        """
        if not steps:
            return
        folder = self._place.put_aside(steps)
        _warn(
            f"{self.directory} had checkpoints of later steps, the latest {steps[0]}, from which this job has not gone "
            f"on; they are in {folder} now"
        )

    def _raise_failure(self) -> None:
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def check_at_least(name: str, value: Any, low: int) -> None:
    """Raise ValueError unless the value is an integer of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")


def _warn(text: str) -> None:
    warner(0, Settings.from_environ())(text)
