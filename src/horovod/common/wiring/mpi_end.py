"""End of MPI after ``wiring.mpi`` has initialized it: MPI_Finalize, which waits for all processes of the job.

MPI_Finalize cannot be interrupted, and there is no limit to how long it may take: another rank may write a file for an
hour before its process ends. So the wait does not end by a timeout but when another process is gone. To detect that,
the control connections to the neighbors in the tree of ranks are kept open through a second descriptor until the
process ends; the kernel closes them when a process dies. A process that has completed MPI_Finalize closes them too,
hence the grace period.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterable

GRACE = 10.0
"""Seconds in which MPI_Finalize must return after a neighbor's process has ended, whether it has completed or died."""
TELL_AFTER = 60.0
"""Seconds of waiting for live processes after which a message is logged."""
_SLICE = 0.2  # seconds between checks

_links: list[tuple[str, int]] = []
_kept: list[tuple[str, int]] = []


def note(links: Iterable[tuple[str, int]]) -> None:
    """Remember the control connections of a starting engine.

    ``links``: labels of the ranks, and descriptors that the engine owns.
    """
    _links[:] = links


def keep() -> None:
    """Keep duplicates of the connections of an engine that ends normally, only to detect lost processes."""
    _close()
    for label, descriptor in _links:
        with contextlib.suppress(OSError):  # out of descriptors: then only the launcher detects lost processes
            _kept.append((label, os.dup(descriptor)))
    _links.clear()


def gone(kept: Iterable[tuple[str, int]]) -> str | None:
    """Return the label of a rank whose end of the connection is closed, or None. Data in the connections is ignored."""
    kept = list(kept)
    poll = select.poll()
    for _, descriptor in kept:
        poll.register(descriptor, select.POLLRDHUP)
    closed = {descriptor for descriptor, _ in poll.poll(0)}
    return next((label for label, descriptor in kept if descriptor in closed), None)


def finish(ended: Callable[[float], bool], say: Callable[[str], None]) -> bool:
    """Wait for the end of MPI_Finalize, and log a message if that takes long.

    Args:
        ended: Waits for the end for the given seconds, and returns True if it has come.
        say: Logs a warning.

    Returns:
        False if it will not end because a neighbor's process is gone; that was logged.
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
    """End the process while MPI_Finalize is running, skipping exit handlers that could conflict with it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(1)


def _close() -> None:
    for _, descriptor in _kept:
        os.close(descriptor)
    _kept.clear()


os.register_at_fork(after_in_child=_close)
