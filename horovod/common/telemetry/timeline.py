"""The timeline of this rank: which file, since when. What is written and how: ``core/trace/timeline.h``."""

import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from horovod.common.contract import boot
from horovod.common.contract.setting import steps_of
from horovod.common.contract.settings import Settings
from horovod.common.job import Job
from horovod.timeline import names

if TYPE_CHECKING:
    from horovod import _core

DYNAMIC = "DYNAMIC"
_PATIENCE = 1.0  # s after this rank's end for others' files to be complete
_MERGING = 300.0  # s


class Timelines:
    """Of one job: the one that runs, if one does. Any thread."""

    def __init__(self, job: Job, engine: "_core.Engine", settings: Settings) -> None:
        self._job, self._engine, self._settings = job, engine, settings
        self._lock = threading.Lock()
        self._running: _core.Timeline | None = None
        self._asked = settings.text("HOROVOD_TIMELINE")

    def begin(self) -> str:
        """What the environment asks for. Returns why that could not be had, for a warning, or nothing: a job does not
        fail because it cannot be watched."""
        if not self._asked or self._asked.upper() == DYNAMIC:
            return ""
        try:
            self._open(self._asked, self._settings.flag("HOROVOD_TIMELINE_MARK_CYCLES"))
        except OSError as error:
            return f"no timeline: HOROVOD_TIMELINE is {self._asked!r}, and {error.strerror or error}"
        return ""

    def start(self, file_path: str, mark_cycles: bool = False) -> None:
        """See ``HorovodBasics.start_timeline``."""
        if not self._asked:
            raise ValueError(
                f"start_timeline({file_path!r}): HOROVOD_TIMELINE was not set when hvd.init() was called; "
                "HOROVOD_TIMELINE=DYNAMIC (horovodrun --timeline-filename DYNAMIC) lets a job start timelines later"
            )
        self.stop()
        self._open(os.fspath(file_path), mark_cycles)

    def _open(self, path: str, mark_cycles: bool) -> None:
        first, end = steps_of(self._settings.text("HOROVOD_TIMELINE_STEPS"))
        with self._lock:
            self._running = self._engine.start_timeline(
                names.of_rank(path, self._job.rank),
                socket.gethostname(),
                mark_cycles,
                self._settings.number("HOROVOD_TIMELINE_LAST"),
                first,
                end,
            )

    def stop(self) -> None:
        """What has been taken down is in the file when this returns."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            self._engine.stop_timeline(running)

    def merge(self) -> str:
        """After the job's end: what ``HOROVOD_TIMELINE_MERGE`` asks of rank 0. Returns what went wrong, or nothing.

        In a process of its own: it may take much memory, and its end is not this one's.
        """
        wanted = self._settings.flag("HOROVOD_TIMELINE_MERGE") and self._job.rank == 0
        if not wanted or not self._asked or self._asked.upper() == DYNAMIC or not os.path.exists(self._asked):
            return ""
        deadline = time.monotonic() + _PATIENCE
        others = [names.of_rank(self._asked, rank) for rank in range(1, self._job.size)]
        while not all(map(_complete, others)) and time.monotonic() < deadline:
            time.sleep(0.05)
        words = ["merge", self._asked, "-o", names.with_word(self._asked, "all")]
        try:
            subprocess.run(
                [sys.executable, *boot.words("horovod.timeline.__main__"), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=_MERGING,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            return f"timelines were not merged: {error.stderr.strip()}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"timelines were not merged: {error}"
        return ""


def _complete(path: str) -> bool:
    """Has the file's writer closed it? While it is written, blanks follow the last bracket."""
    try:
        with open(path, "rb") as file:
            file.seek(-2, os.SEEK_END)
            return file.read() == b"]\n"
    except OSError:
        return False
