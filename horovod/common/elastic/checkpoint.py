"""Checkpoints of a job, on disk or in an object store: written in the background, whole or not at all, the last few of
them kept.

A commit survives ranks, a checkpoint the job. It is written by one rank and says nothing of how many there were.
"""

import copy
import os
import pickle
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings
from horovod.common.elastic import checkpoint_files as files
from horovod.common.elastic import checkpoint_record as records
from horovod.common.elastic.checkpoint_directory import place_of
from horovod.common.elastic.checkpoint_place import Folder
from horovod.common.elastic.checkpoint_trust import Trust
from horovod.common.elastic.checkpoint_writer import start_writer

Dump = Callable[[Any, IO[bytes]], None]
Load = Callable[[IO[bytes]], Any]


class Loaded(NamedTuple):
    """A checkpoint that was read."""

    step: int
    value: Any


class Checkpoint:
    """Of one job, in a directory of its own. For one thread; use ``close``, or a with statement, at the end."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int = 3,
        *,
        writes: Callable[[], bool] = lambda: True,
        dump: Dump = pickle.dump,
        load: Load = pickle.load,
        taken: Callable[[Any], Any] = copy.deepcopy,
        job: Callable[[], str] = records.job_tag,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """``directory``: a path, or a URL that fsspec knows, as ``s3://bucket/name``; ``storage_options``: what fsspec
        is told then, as keys of S3. ``keep``: so many are kept, the latest. ``writes``: does this rank write? The
        others only read. ``dump``, ``load``: by pickle if not given; what is loaded may run code, as pickles do.
        ``taken``: copies a value before ``save`` returns, so that the program may go on changing it. ``job``: what
        tells the job from others, empty:
        its ranks stay the same, and each knows by itself what is the job's.

        Files of other users are refused, and with HOROVOD_CHECKPOINT_KEY_FILE what is not sealed with that key
        (``checkpoint_trust``).

        Raises ValueError for a ``keep`` below 1 and for a directory that is a file; ImportError naming the package that
        a URL needs.
        """
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep is {keep!r}, accepted is an integer of at least 1")
        trust = Trust.from_settings(Settings.from_environ())
        self._place = place = place_of(directory, storage_options, trust)
        self.directory: Path | str = place.path if isinstance(place, Folder) else str(place)
        self._keep = keep
        self._writes = writes
        self._dump = dump
        self._load = load
        self._taken = taken
        self._job = job
        self._tag = ""
        self.torn: list[str] = []
        """What was wrong with files that ``load`` has passed over."""
        self._lock = threading.Condition()
        self._next: tuple[int, Any] | None = None  # what is to be written
        self._writing = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._prepared = False
        self._ours: set[int] = set()  # this job has asked for them, or gone on from a later one

    def save(self, step: int, value: Any) -> None:
        """Writes it in the background; returns when it is copied. ``step``: the larger, the later. If the one before
        has not been begun yet, this takes its place. Nothing on a rank that does not write.

        What cannot be written is told on stderr when that is known, and training goes on: a full disk is no reason to
        lose a rank. The checkpoints that were there still are, and the next call tries again. ``wait`` and ``close``
        raise it if it was the last one.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"step is {step!r}, accepted is an integer of at least 0")
        self._ours.add(step)  # also where another rank writes it, whom this one may have to follow
        if not self._writes():
            return
        copied = self._taken(value)
        with self._lock:
            self._next = step, copied
            if self._thread is None:
                self._thread = start_writer(self._write_all)

    def wait(self, seconds: float | None = None) -> bool:
        """Until all that was saved is on the disk; False when it is not after ``seconds``. Raises OSError, or what
        writing has raised, if the last one could not be written."""
        with self._lock:
            done = self._lock.wait_for(lambda: self._thread is None, seconds)
        self._raise_failure()
        return done

    def load(self, step: int | None = None) -> Loaded | None:
        """The newest one that is whole, None without any; those that are not are passed over (``torn``). ``step``: this
        one, TornCheckpointError when it is not whole, FileNotFoundError when it is not there. UntrustedCheckpointError
        for one that another user may have written."""
        if step is not None:
            return self._load_one(step)
        self.torn = []
        for found in self._place.steps():
            try:
                return self._load_one(found)
            except files.TornCheckpointError as error:
                self.torn.append(str(error))
            except FileNotFoundError:  # the rank that writes has removed it
                continue
        return None

    def _load_one(self, step: int) -> Loaded:
        loaded = Loaded(step, self._place.read(step, self._load))
        self._ours.update(one for one in self._place.steps() if one <= step)
        return loaded

    def steps(self) -> list[int]:
        """Of the checkpoints that are there, whole or not, the latest first."""
        return self._place.steps()

    def close(self) -> None:
        """Waits for what is being written. Raises as ``wait``. May be called again."""
        self.wait()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The thread that writes

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
                self._prepare(step)
                self._note(step)
                self._place.write(step, lambda file, value=value: self._dump(value, file))  # type: ignore[misc]
                self._remove_old(step)
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
                self._ours |= records.recorded(self._place, self._tag)
            self._put_aside([one for one in self.steps() if one > step and one not in self._ours])
            self._prepared = True

    def _note(self, step: int) -> None:
        """Before it is there, so that no file of this job is without. For ranks that come later."""
        if self._tag:
            records.record(self._place, self._tag, {step, *self._ours.intersection(self.steps())})

    def _remove_old(self, written: int) -> None:
        """``written`` is whole, so one always is. Later ones are of a future that did not come: training has gone back
        to before them. What this job has neither written nor gone on from stays."""
        there = [step for step in self._place.steps() if step in self._ours]
        kept = [step for step in there if step <= written][: self._keep]
        for step in there:
            if step not in kept:
                self._place.remove(step)

    def _put_aside(self, steps: list[int]) -> None:
        """Later ones than the first of this job, which has not gone on from them: ``load`` would take them for its
        newest, and they may be somebody's only ones."""
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


def _warn(text: str) -> None:
    warner(0, Settings.from_environ())(text)
