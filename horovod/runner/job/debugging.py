"""`horovodrun --debug-rank N`: one rank reads and writes the launcher's terminal itself, so debuggers work there."""

from __future__ import annotations

import contextlib
import os
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from horovod.runner.base.errors import LaunchError
from horovod.runner.plan import hosts
from horovod.runner.plan.hosts import Slot

# In the other ranks breakpoint() does nothing; there a debugger would find the end of its input.
OTHERS = {"PYTHONBREAKPOINT": "0"}
_CONNECT = "breakpoint() finds no input there; use a debugger that one connects to, such as debugpy"


@dataclass(frozen=True)
class Debugged:
    """`terminal`: the path of the one that the rank gets, empty: none, and `remark` says why."""

    rank: int
    terminal: str = ""
    remark: str = ""


def check(rank: int, slots: Sequence[Slot]) -> int | None:
    """The rank, None for -1. Raises LaunchError for one that the job does not have."""
    if rank >= len(slots):
        raise LaunchError(
            f"--debug-rank (HOROVOD_DEBUG_RANK) is {rank}, accepted are ranks of the job, from 0 to {len(slots) - 1}, "
            "and -1 for none"
        )
    return None if rank < 0 else rank


def place(rank: int, slots: Sequence[Slot], terminal: str) -> Debugged:
    """What the rank gets. `terminal`: the launcher's, empty without one."""
    host = next(slot.hostname for slot in slots if slot.rank == rank)
    if not hosts.is_local(host):
        return Debugged(rank, remark=f"rank {rank} is on host {host}, which does not have this terminal: {_CONNECT}")
    if not terminal:
        return Debugged(rank, remark=f"rank {rank} cannot be given a terminal, since there is none here: {_CONNECT}")
    return Debugged(rank, terminal)


def of_job(rank: int | None, slots: Sequence[Slot]) -> Debugged | None:
    """The same for this process's terminal; None when no rank is debugged."""
    return None if rank is None else place(rank, slots, terminal_here())


def terminal_here() -> str:
    """The path of the terminal that is this process's standard input and output; empty: there is none."""
    try:
        if not (os.isatty(0) and os.isatty(1)):
            return ""
        return os.ttyname(0)
    except OSError:  # a container may have been given one that has no name in it
        return f"/proc/{os.getpid()}/fd/0"


@contextlib.contextmanager
def terminal_restored(rank: int | None) -> Iterator[None]:
    """A debugger that is killed at its prompt leaves the terminal without echo: put it back, if a rank had it."""
    try:
        before = termios.tcgetattr(0) if rank is not None else None
    except termios.error:  # no terminal
        before = None
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(termios.error):  # it has hung up
                termios.tcsetattr(0, termios.TCSANOW, before)
