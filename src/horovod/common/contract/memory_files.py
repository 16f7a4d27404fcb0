"""Unnamed files in memory (memfd). They pass the job's key to workers, and the ranks of a host share memory by them."""

import errno
import os

REFUSED = (
    "memfd_create is refused ({}), without which no job can start: it hands the job's key to workers, and ranks share "
    "memory by it. A container's seccomp profile has to allow it, as those of Docker and Podman do"
)

_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_NO_ROOM = "no file can be made in memory: {} (of this process: ulimit -n; of the machine: fs.file-max, memory)"


class MemoryFileError(OSError):
    """The system refuses to create the file; the text says what must allow it."""

    def __str__(self) -> str:  # without the error number
        return str(self.strerror)


def create(name: str) -> int:
    """Return the descriptor of an empty memory file that can be sealed and is closed on exec.

    ``name`` is only visible in /proc.

    Raises:
        MemoryFileError: If the file cannot be created.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        text = REFUSED if error.errno in _FORBIDDEN else _NO_ROOM
        raise MemoryFileError(error.errno, text.format(error.strerror)) from None
