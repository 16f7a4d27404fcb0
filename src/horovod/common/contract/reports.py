"""Directories for problem reports: one directory per user, with a subdirectory for each job.

The default directory has a predictable name under the temporary directory. It is not used if another user created it
first.
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
MAX_REPORTS = 50
"""Number of job directories to keep. A new job removes older ones."""
_JOB = re.compile(r"\d{8}-\d{6}-(\d{1,10})", re.ASCII)
_FILE = re.compile(r"(hang\.txt|recorder\.rank\d+\.jsonl|stacks\.rank\d+\.txt)(\.part[\d-]+)?")
_SOCKET = "horovod-explain-"
_SOCKET_LINE = re.compile(rf" @({_SOCKET}([1-9][0-9]{{0,9}})-[0-9a-f]{{16}})\n?\Z")


def folder_of_user(text: str) -> str:
    """Return the report directory that the user has set (``text``), or the default directory if ``text`` is empty."""
    if text:
        return os.path.abspath(text)
    try:
        place = tempfile.gettempdir()
    except FileNotFoundError:  # no directory is writable, so the job runs without reports
        place = "/tmp"
    return os.path.join(place, f"horovod-{os.getuid()}")


def folder_of_job(text: str) -> str:
    """Return the report directory for the job that this process is starting.

    The first report creates the job's directory. Until then, only the user's default directory exists.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return on_this_host(os.path.join(folder_of_user(text), name))


def on_this_host(folder: str) -> str:
    """Return the job's directory, or a new one if another user owns the default directory on this host.

    Args:
        folder: Result of `folder_of_job`, possibly from another host.
    """
    place, name = os.path.split(folder)
    if place != folder_of_user(""):
        return folder
    try:
        os.close(private_files.open_private_folder(place))
        return folder
    except OSError:
        if not os.path.lexists(place):
            return folder  # do not raise an error here, because writing the first report raises a more descriptive one
    with contextlib.suppress(OSError):
        return os.path.join(tempfile.mkdtemp(prefix=f"horovod-{os.getuid()}-"), name)
    return folder


def process_of(folder: str) -> int | None:
    """Extract rank 0's process id from a job directory's name, or return None for other names."""
    found = _JOB.fullmatch(os.path.basename(os.path.normpath(folder)))
    return int(found[1]) if found else None


def prune(folder: str) -> None:
    """Remove the oldest job directories next to ``folder``.

    Only this user's directories that contain nothing but reports are removed, because the user can have similarly named
    directories.
    """
    with contextlib.suppress(OSError), private_files.closing(_open_listed(os.path.dirname(folder))) as parent:
        with os.scandir(parent) as entries:
            names = sorted(e.name for e in entries if _JOB.fullmatch(e.name) and e.is_dir(follow_symlinks=False))
        ours = [name for name in names if _reports_in(parent, name) is not None]
        for name in ours[:-MAX_REPORTS]:
            with contextlib.suppress(OSError):
                _remove(parent, name)


def _open_listed(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _reports_in(parent: int, name: str) -> list[str] | None:
    """List a job directory's reports, or return None if another user owns it or it contains other files."""
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


def new_socket_name() -> str:
    """Create a name for the abstract Unix socket on which this process explains why its job is waiting.

    Part of the name is random, because any process in the network namespace could occupy a predictable name.
    """
    return f"\0{_SOCKET}{os.getpid()}-{secrets.token_hex(8)}"


def sockets() -> list[tuple[int, str]]:
    """Return (process id, socket name) for each job's ``--explain`` socket in this network namespace.

    The process id is parsed from the name. Any process, even in another container, can create such a name, so callers
    must ask the kernel for the socket's owner.
    """
    found = set()
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if match := _SOCKET_LINE.search(line):
                found.add((int(match[2]), "\0" + match[1]))
    return sorted(found)
