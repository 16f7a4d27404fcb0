"""Where a job writes what it has to say when something is wrong: a folder for each job in one for each user.

The user's folder has a name in the folder for temporary files that anyone can foresee, so another user may have made it
first. Such a folder is not used.
"""

import contextlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator

from horovod.common.contract import private_files

VARIABLE = "HOROVOD_REPORT_DIR"
KEPT = 50
"""Folders of jobs; the oldest others are removed when a job begins."""
_JOB = re.compile(r"\d{8}-\d{6}-(\d{1,10})", re.ASCII)
_FILE = re.compile(r"(hang\.txt|recorder\.rank\d+\.jsonl|stacks\.rank\d+\.txt)(\.part[\d-]+)?")
_DOOR = "horovod-explain-"
_DOOR_LINE = re.compile(rf" @({_DOOR}([1-9][0-9]{{0,9}})-[0-9a-f]{{16}})\n?\Z")


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
    """Return the folder of a job that begins now with this process.

    It is made when there is something to write, the user's default folder at once.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return on_this_host(os.path.join(folder_of_user(text), name))


def on_this_host(folder: str) -> str:
    """Return a job's folder, or a fresh one where another user has made the default folder of this user.

    Args:
        folder: The folder as `folder_of_job` has returned it, perhaps on another host.
    """
    place, name = os.path.split(folder)
    if place != folder_of_user(""):
        return folder
    try:
        os.close(private_files.open_private_folder(place))
        return folder
    except OSError:
        if not os.path.lexists(place):
            return folder  # nothing can be written here, which is told once there is something to write
    with contextlib.suppress(OSError):
        return os.path.join(tempfile.mkdtemp(prefix=f"horovod-{os.getuid()}-"), name)
    return folder


def process_of(folder: str) -> int | None:
    """Rank 0's process, by the name of a job's folder; None: it is none."""
    found = _JOB.fullmatch(os.path.basename(os.path.normpath(folder)))
    return int(found[1]) if found else None


def prune(folder: str) -> None:
    """Remove the oldest folders of jobs beside ``folder``.

    Only folders of this user with nothing but reports in them are removed: people name theirs after dates, too.
    """
    with contextlib.suppress(OSError), private_files.closing(_open_listed(os.path.dirname(folder))) as parent:
        with os.scandir(parent) as entries:
            names = sorted(e.name for e in entries if _JOB.fullmatch(e.name) and e.is_dir(follow_symlinks=False))
        ours = [name for name in names if _reports_in(parent, name) is not None]
        for name in ours[:-KEPT]:
            with contextlib.suppress(OSError):
                _remove(parent, name)


def _open_listed(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _reports_in(parent: int, name: str) -> list[str] | None:
    """The names in a job's folder; None: it is not this user's, or has something else in it."""
    with contextlib.suppress(OSError), _opened_own(parent, name) as fd:
        found = os.listdir(fd)
        return found if all(map(_FILE.fullmatch, found)) else None
    return None


def _remove(parent: int, name: str) -> None:
    with _opened_own(parent, name) as fd:
        found = os.listdir(fd)
        if not all(map(_FILE.fullmatch, found)):
            return
        for file in found:
            os.unlink(file, dir_fd=fd)
    os.rmdir(name, dir_fd=parent)


@contextlib.contextmanager
def _opened_own(parent: int, name: str) -> Iterator[int]:
    with private_files.closing(private_files.open_folder(name, parent, listed=True)) as fd:
        private_files.check_private(fd, name)
        yield fd


def new_door() -> str:
    """Return a name for the abstract Unix socket at which this process tells why its job waits.

    Part of the name is random, since any process of the network namespace may take a name that it foresees.
    """
    return f"\0{_DOOR}{os.getpid()}-{secrets.token_hex(8)}"


def doors() -> list[tuple[int, str]]:
    """Return the sockets of that kind in this network namespace: the process in each name, and the name.

    Any process may have made one, also of another container with other process numbers: ask the kernel who it was.
    """
    found = set()
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if door := _DOOR_LINE.search(line):
                found.add((int(door[2]), "\0" + door[1]))
    return sorted(found)
