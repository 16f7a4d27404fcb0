"""Checkpoints of a job on disk or in an object store.

Checkpoints are written atomically, in the background, and only the last few are kept. A commit survives the loss of
ranks, and a checkpoint also survives the end of the job. One rank writes the checkpoint for all ranks, and a job with
any number of ranks can load it.
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
from horovod.common.elastic.checkpoint_files import OWN, Trust
from horovod.common.elastic.checkpoint_place import Folder, Objects, Place, job_tag, record, recorded, without_password

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_URL = re.compile(f"{_SCHEME}(?:::{_SCHEME})*://")  # matches URLs like simplecache::s3://..., not the path run::3
_FILE = re.compile(r"file:/+")
_LOST_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")


def place_of(directory: str | os.PathLike[str], options: Mapping[str, Any] | None = None, trust: Trust = OWN) -> Place:
    """Return the storage for a directory's path or URL.

    Args:
        directory: Path or URL.
        options: fsspec options for a URL.
        trust: Rules that decide which checkpoints may be read.

    Raises:
        ValueError: If the directory is a file or otherwise invalid.
        ImportError: If a package that the URL requires is missing. The message names the package.
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


# At exit, the interpreter must wait for the checkpoint writer thread.
#
# Python waits for non-daemon threads at exit, but shuts down concurrent.futures first. File systems such as s3fs need
# concurrent.futures even to resolve a host name. Without an exit hook that waits earlier, the last checkpoint would be
# lost.
#
# Python 3.12.0 and 3.12.1 cannot start threads in exit hooks, so programs must call ``close`` there.
_once = threading.Lock()
_registered = False


class Writer(threading.Thread):
    """Non-daemon thread that writes checkpoints."""


def start_writer(target: Callable[[], None]) -> threading.Thread:
    """Start a thread that writes checkpoints and delays the interpreter's exit until it has finished."""
    _register()
    writer = Writer(target=target, name="horovod-checkpoint", daemon=False)
    writer.start()
    return writer


def _register() -> None:
    global _registered
    with _once:
        if _registered:
            return
        # Exit hooks run in reverse order. Import concurrent.futures, which registers one, so that ours runs before it.
        import concurrent.futures.thread  # noqa: F401

        # `_register_atexit` is private in Python. Without it, `_wait` runs too late to upload checkpoints to a URL.
        register = getattr(threading, "_register_atexit", atexit.register)
        with contextlib.suppress(RuntimeError):  # the interpreter may already be exiting
            register(_wait)
        _registered = True


def _wait() -> None:
    for thread in threading.enumerate():  # a forked child has none of its parent's writer threads to wait for
        if isinstance(thread, Writer):
            thread.join()


Dump = Callable[[Any, IO[bytes]], None]
Load = Callable[[IO[bytes]], Any]


class Loaded(NamedTuple):
    """Step and value of a checkpoint that ``Checkpoint.load`` has loaded."""

    step: int
    value: Any


class Checkpoint:
    """Writer and reader of one job's checkpoints, in a directory that no other job uses.

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
        """Prepare to write checkpoints to a directory and to load them.

        ``load`` rejects files of other users. If HOROVOD_CHECKPOINT_KEY_FILE is set, it also rejects files that are not
        sealed with that key.

        Args:
            directory: Path, or URL that fsspec supports, such as ``s3://bucket/name``.
            keep: Number of latest checkpoints to keep.
            writes: Returns True if this rank writes checkpoints. Other ranks only read them.
            dump: Function that serializes a value into a file. Default: pickle.
            load: Function that reads a value from a file. As with pickle, loading can execute code from the file.
            taken: Function that copies a value. ``save`` calls it before it returns, so the program can then change the
                original.
            job: Function that returns an id of the job. For a job with a fixed set of ranks it returns "": each rank of
                such a job knows which checkpoints belong to the job.
            storage_options: fsspec options for a URL, such as credentials for S3.

        Raises:
            ValueError: If ``keep`` is below 1 or the directory is a file.
            ImportError: If a package is missing that the URL needs. The message names the package.
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
        self._snapshot = taken
        self._job = job
        self._tag = ""
        self.torn: list[str] = []
        """Reason why ``load`` has skipped a file, for each skipped file."""
        self._lock = threading.Condition()
        # Step and value of the checkpoint to write next.
        self._next: tuple[int, Any] | None = None
        self._writing = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._prepared = False
        # Steps whose checkpoints belong to this job. Loading a checkpoint adds its step and all earlier ones.
        self._own: set[int] = set()

    def save(self, step: int, value: Any) -> None:
        """Copy the value and write it in the background.

        If the previous checkpoint is still waiting to be written, this one replaces it. Has no effect on ranks that do
        not write checkpoints.

        If writing fails, training continues and the error is printed to stderr, because a full disk should not end a
        rank. Existing checkpoints are kept, and the next call tries again. ``wait`` and ``close`` raise the error of
        the last write.

        Args:
            step: Training step of the checkpoint, 0 or more. Later checkpoints must have larger steps.
            value: Value to save.

        Raises:
            ValueError: If ``step`` is not an integer of 0 or more.
        """
        check_at_least("step", step, 0)
        self._own.add(step)  # record the step on every rank, because any rank can become the checkpoint writer later
        if not self._writes():
            return
        copied = self._snapshot(value)
        with self._lock:
            self._next = step, copied
            if self._thread is None:
                self._thread = start_writer(self._write_all)

    def write(self, step: int, value: Any) -> None:
        """Write the value without copying it first, and return once the checkpoint is on disk.

        Do not combine this with ``save``.

        Raises:
            ValueError: If ``step`` is not an integer of 0 or more.
            OSError: If the checkpoint cannot be written. ``dump`` or the file system can raise other errors.
        """
        check_at_least("step", step, 0)
        self._own.add(step)
        self._prepare(step)
        self._note(step)
        self._place.write(step, lambda file: self._dump(value, file))
        self._remove_old(step)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all saved checkpoints are on disk.

        Args:
            seconds: Maximum time to wait in seconds. None means no limit.

        Returns:
            True if all saved checkpoints are on disk, False if ``seconds`` have passed.

        Raises:
            OSError: If the last checkpoint could not be written. ``dump`` or the file system can raise other errors.
        """
        with self._lock:
            done = self._lock.wait_for(lambda: self._thread is None, seconds)
        self._raise_failure()
        return done

    def load(self, step: int | None = None) -> Loaded | None:
        """Return the newest complete checkpoint, or None if there is none.

        Incomplete checkpoints are skipped and listed in ``torn``.

        Args:
            step: Load only the checkpoint of this step. Default: the newest checkpoint.

        Raises:
            TornCheckpointError: If the checkpoint of ``step`` is incomplete.
            FileNotFoundError: If ``step`` has no checkpoint.
            UntrustedCheckpointError: If another user might have written the checkpoint.
        """
        if step is not None:
            return self._load_one(step)
        self.torn = []
        for found in self._place.steps():
            try:
                return self._load_one(found)
            except files.TornCheckpointError as error:
                self.torn.append(str(error))
            except FileNotFoundError:  # the writing rank has just removed this old checkpoint
                continue
        return None

    def _load_one(self, step: int) -> Loaded:
        loaded = Loaded(step, self._place.read(step, self._load))
        self._own.update(one for one in self._place.steps() if one <= step)
        return loaded

    def steps(self) -> list[int]:
        """Return the steps of all existing checkpoints, including incomplete ones, latest first."""
        return self._place.steps()

    def close(self) -> None:
        """Wait for pending writes and stop the writer. Raises the same errors as ``wait``. Can be called repeatedly."""
        self.wait()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The following methods run in the writer thread.

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
                self._own |= recorded(self._place, self._tag)
            self._put_aside([one for one in self.steps() if one > step and one not in self._own])
            self._prepared = True

    def _note(self, step: int) -> None:
        """Record that the step's checkpoint belongs to this job. Call this before the file is created."""
        if self._tag:
            record(self._place, self._tag, {step, *self._own.intersection(self.steps())})

    def _remove_old(self, written: int) -> None:
        """Remove this job's old checkpoints after the checkpoint of step ``written`` is complete.

        Checkpoints of later steps are removed too: training has rolled back to an earlier step and can diverge from
        there. Other jobs' checkpoints are kept, unless this job resumed from one of them.
        """
        there = [step for step in self._place.steps() if step in self._own]
        kept = [step for step in there if step <= written][: self.keep]
        for step in there:
            if step not in kept:
                self._place.remove(step)

    def _put_aside(self, steps: list[int]) -> None:
        """Move later checkpoints that belong to other jobs to another directory.

        Left in place, one of them would be loaded as the newest. They are not deleted, because they might be the only
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
    """Raise ValueError unless the value is an integer and at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")


def _warn(text: str) -> None:
    warner(0, Settings.from_environ())(text)
