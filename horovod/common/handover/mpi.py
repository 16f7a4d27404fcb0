"""Is an MPI library at work in this process? It shares the process manager's connection with us."""

import ctypes
import os
import re
from collections.abc import Iterator

from horovod.common.devices import mpi_libraries


def mapped(pid: int, library: str) -> list[str]:
    """Paths of a shared library, such as ``libmpi``, that a process has mapped; none when that cannot be seen."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            found = re.findall(rf"(/\S*/{re.escape(library)}\.so[.\d]*)$", file.read(), re.MULTILINE)
    except OSError:  # another user's, or gone
        return []
    return list(dict.fromkeys(found))


def is_in_use() -> bool:
    """Has the program started MPI (by mpi4py or otherwise) in this process and not ended it yet?"""
    return any(started and not ended for started, ended in _states())


def was_used() -> bool:
    """Has it started MPI, whether that has ended or not? Then MPI says to the process manager what there is to say at
    the end: libraries do so in MPI_Finalize, or when the process ends.
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
