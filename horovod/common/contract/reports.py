"""Where a job writes what it has to say when something is wrong: a folder for each job in one for each user."""

import contextlib
import os
import re
import tempfile
import time

VARIABLE = "HOROVOD_REPORT_DIR"
KEPT = 50
"""Folders of jobs; the oldest others are removed when a job begins."""
_JOB = re.compile(r"\d{8}-\d{6}-(\d+)")
_FILE = re.compile(r"(hang\.txt|recorder\.rank\d+\.jsonl|stacks\.rank\d+\.txt)(\.part[\d-]+)?")
_DOOR = "horovod-explain-"


def folder_of_user(text: str) -> str:
    """``text`` as the user gave it, or without it the default."""
    if text:
        return os.path.abspath(text)
    try:
        place = tempfile.gettempdir()
    except FileNotFoundError:  # nothing here can be written: jobs run all the same, what they have to report is lost
        place = "/tmp"
    return os.path.join(place, f"horovod-{os.getuid()}")


def folder_of_job(text: str) -> str:
    """That of a job that begins now with this process; nothing is made before there is something to write."""
    return os.path.join(folder_of_user(text), f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


def process_of(folder: str) -> int | None:
    """Rank 0's process, by the name of a job's folder; None: it is none."""
    found = _JOB.fullmatch(os.path.basename(os.path.normpath(folder)))
    return int(found[1]) if found else None


def prune(folder: str) -> None:
    """Removes the oldest folders of jobs beside ``folder``. What else lies there stays, and so does a folder of such a
    name with something else in it: people name theirs after dates, too."""
    with contextlib.suppress(OSError):
        parent = os.path.dirname(folder)
        with os.scandir(parent) as entries:
            jobs = [e.path for e in entries if _JOB.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        ours = sorted(path for path in jobs if all(map(_FILE.fullmatch, _names(path))))
        for path in ours[:-KEPT]:
            with contextlib.suppress(OSError):
                for name in _names(path):
                    os.unlink(os.path.join(path, name))
                os.rmdir(path)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # another process removes it as well
        return []


def door_of(pid: int) -> str:
    """Name of the abstract Unix socket at which the process tells why its job waits (``horovodrun --explain``)."""
    return f"\0{_DOOR}{pid}"


def doors() -> list[int]:
    """Processes that have such a socket here."""
    found = []
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name = line.rstrip("\n").rpartition(" ")[2]
            if name.startswith("@" + _DOOR) and name[len(_DOOR) + 1 :].isdigit():
                found.append(int(name[len(_DOOR) + 1 :]))
    return sorted(set(found))
