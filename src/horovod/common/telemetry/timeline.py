"""Starts and stops this rank's timeline, and NVTX ranges for NVIDIA's profilers (docs/gpu.md).

``core/trace/timeline.h`` describes the contents and the format of the timeline.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from horovod.common.contract import boot
from horovod.common.contract.setting import steps_of
from horovod.common.contract.settings import Settings
from horovod.common.devices import libraries
from horovod.common.devices.libraries import Missing
from horovod.common.frontends import Job
from horovod.timeline import read

if TYPE_CHECKING:
    from horovod import _core
    from horovod._core import Engine

DYNAMIC = "DYNAMIC"
# Seconds to wait for other ranks to complete their files.
_PATIENCE = 1.0
# Time limit in seconds for merging the files.
_MERGING = 300.0


class Timelines:
    """Timelines of one job, of which at most one runs at a time. Thread-safe."""

    def __init__(self, job: Job, engine: "_core.Engine", settings: Settings) -> None:
        self._job, self._engine, self._settings = job, engine, settings
        self._lock = threading.Lock()
        self._running: _core.Timeline | None = None
        self._asked = settings.text("HOROVOD_TIMELINE")

    def begin(self) -> str:
        """Start the timeline that the environment requests. Return an error message, or "" on success."""
        if not self._asked or self._asked.upper() == DYNAMIC:
            return ""
        try:
            self._open(self._asked, self._settings.flag("HOROVOD_TIMELINE_MARK_CYCLES"))
        except OSError as error:
            return f"no timeline: HOROVOD_TIMELINE is {self._asked!r}, and {error.strerror or error}"
        return ""

    def start(self, file_path: str, mark_cycles: bool = False) -> None:
        """Start a timeline. See ``HorovodBasics.start_timeline``."""
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
                read.of_rank(path, self._job.rank),
                socket.gethostname(),
                mark_cycles,
                self._settings.number("HOROVOD_TIMELINE_LAST"),
                first,
                end,
            )

    def stop(self) -> None:
        """Stop the running timeline, if any. The file then contains all recorded events."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            self._engine.stop_timeline(running)

    def merge(self) -> str:
        """Merge the ranks' timelines on rank 0 after the job's end, if ``HOROVOD_TIMELINE_MERGE`` is set.

        Merging runs in a separate process, because it may need a lot of memory and may fail.

        Returns:
            An error message, or "" on success.
        """
        wanted = self._settings.flag("HOROVOD_TIMELINE_MERGE") and self._job.rank == 0
        if not wanted or not self._asked or self._asked.upper() == DYNAMIC or not os.path.exists(self._asked):
            return ""
        deadline = time.monotonic() + _PATIENCE
        others = [read.of_rank(self._asked, rank) for rank in range(1, self._job.size)]
        while not all(map(_complete, others)) and time.monotonic() < deadline:
            time.sleep(0.05)
        words = ["merge", self._asked, "-o", read.with_word(self._asked, "all")]
        try:
            subprocess.run(
                [sys.executable, *boot.arguments("horovod.timeline.__main__"), *words],
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
    """Return True if the timeline file is complete. An incomplete file is padded with spaces after the last bracket."""
    try:
        with open(path, "rb") as file:
            file.seek(-2, os.SEEK_END)
            return file.read() == b"]\n"
    except OSError:
        return False


_PROFILER = "NVTX_INJECTION64_PATH"  # profilers set this variable to the path of the library that NVTX must load


def begin_nvtx_ranges(engine: "Engine", settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    """Enable NVTX ranges for an attached profiler, unless disabled by the settings. Return an error message or ""."""
    if not environ.get(_PROFILER) or settings.flag("HOROVOD_DISABLE_NVTX_RANGES"):
        return ""
    library = libraries.nvtx(environ)
    if isinstance(library, Missing):
        return f"no ranges for the profiler in {_PROFILER}: {library.reason}"
    try:
        engine.mark_ranges(library.path)
    except OSError as error:
        return f"no ranges for the profiler in {_PROFILER}: {error}"
    return ""
