"""The end of MPI where it was begun by ``wiring.mpi``: MPI_Finalize, which waits for all processes of the job and
cannot be interrupted.

How long that may take nobody knows: another rank may write a file for an hour before its process ends. So it is not a
clock that ends the wait but what ends the others: the control connections to the neighbours in the tree of ranks are
kept open, by a second descriptor, from the engine's end to that of the process, and the kernel closes them where a
process dies. A process that has got through MPI_Finalize closes them too, hence the grace.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterable

GRACE = 10.0
"""Seconds in which MPI_Finalize has to return once a neighbour's process has ended: it has got through, or died."""
TELL_AFTER = 60.0
"""Seconds of waiting for processes that live, until the log says so."""
_SLICE = 0.2  # seconds between two looks

_links: list[tuple[str, int]] = []
_kept: list[tuple[str, int]] = []


def note(links: Iterable[tuple[str, int]]) -> None:
    """The engine that starts has these control connections: labels of the ranks, and descriptors, which it owns."""
    _links[:] = links


def keep() -> None:
    """This engine is about to end, in good order: from now on its connections only tell who lives."""
    _close()
    for label, descriptor in _links:
        with contextlib.suppress(OSError):  # no descriptors are left: then only the launcher tells of the dead
            _kept.append((label, os.dup(descriptor)))
    _links.clear()


def gone(kept: Iterable[tuple[str, int]]) -> str | None:
    """The label of one whose end of the connection is closed. Whatever else has come in there is nobody's."""
    kept = list(kept)
    poll = select.poll()
    for _, descriptor in kept:
        poll.register(descriptor, select.POLLRDHUP)
    closed = {descriptor for descriptor, _ in poll.poll(0)}
    return next((label for label, descriptor in kept if descriptor in closed), None)


def finish(ended: Callable[[float], bool], say: Callable[[str], None]) -> bool:
    """Waits for the end of MPI_Finalize, which ``ended`` does for so many seconds, and says when that takes long.

    False: it has not ended, and will not, for a neighbour's process is gone; that was said.
    """
    begun = time.monotonic()
    lost: tuple[str, float] | None = None
    told = False
    while not ended(_SLICE):
        now = time.monotonic()
        if lost is None and (label := gone(_kept)) is not None:
            lost = label, now
        if lost is not None and now - lost[1] > GRACE:
            say(
                f"MPI_Finalize waits for all processes of the job, but {lost[0]} has ended without it, or before the "
                f"others; this process has given it {GRACE:g} s and ends now, with exit code 1"
            )
            return False
        if lost is None and not told and now - begun > TELL_AFTER:
            told = True
            say(f"MPI_Finalize has waited for {TELL_AFTER:g} s for other processes of the job, which are still running")
    _close()
    return True


def leave() -> None:
    """Ends the process while MPI_Finalize is under way: what the interpreter and libraries do at their end could meet
    with what MPI does."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(1)


def _close() -> None:
    for _, descriptor in _kept:
        os.close(descriptor)
    _kept.clear()


os.register_at_fork(after_in_child=_close)
