"""Is an MPI library at work in this process? It shares the process manager's connection with us."""

import ctypes
import os
import re


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
    for path in mapped(os.getpid(), "libmpi"):
        started, ended = ctypes.c_int(), ctypes.c_int()
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            library.MPI_Initialized(ctypes.byref(started))
            library.MPI_Finalized(ctypes.byref(ended))
        except (OSError, AttributeError):
            continue
        if started.value and not ended.value:
            return True
    return False
