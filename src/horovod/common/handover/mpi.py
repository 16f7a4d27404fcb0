"""Detection of an MPI library in this process, which shares the connection to the process manager."""

import ctypes
import os
import re
from collections.abc import Iterator

from horovod.common.devices import mpi_libraries


def mapped(pid: int, library: str) -> list[str]:
    """Return the paths of a shared library, such as ``libmpi``, that a process has mapped; empty if unknown."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            found = re.findall(rf"(/\S*/{re.escape(library)}\.so[.\d]*)$", file.read(), re.MULTILINE)
    except OSError:  # another user's process, or gone
        return []
    return list(dict.fromkeys(found))


def is_in_use() -> bool:
    """Return True if MPI is initialized and not finalized in this process."""
    return any(started and not ended for started, ended in _states())


def was_used() -> bool:
    """Return True if MPI was initialized, even if it is finalized by now.

    MPI then sends the process manager's final messages itself, in MPI_Finalize or when the process ends.
    """
    return any(started for started, _ in _states())


def _states() -> Iterator[tuple[bool, bool]]:
    for path in mpi_libraries.loaded():
        started, ended = ctypes.c_int(), ctypes.c_int()
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            library.MPI_Initialized(ctypes.byref(started))
            library.MPI_Finalized(ctypes.byref(ended))
        except (OSError, AttributeError):
            continue
        yield bool(started.value), bool(ended.value)
