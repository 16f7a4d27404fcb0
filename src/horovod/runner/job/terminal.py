"""Terminal of the launcher, which provides stdin for rank 0, or the whole terminal for one rank (`--debug-rank N`)."""

from __future__ import annotations

import contextlib
import os
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from horovod.runner.base.job_result import LaunchError
from horovod.runner.plan import hosts
from horovod.runner.plan.hosts import Slot

# `horovodrun --debug-rank N` gives one rank the launcher's terminal, because debuggers need a terminal.

# Disable breakpoint() in all other ranks, because a debugger would have no input there.
OTHER_RANKS = {"PYTHONBREAKPOINT": "0"}
_CONNECT = "breakpoint() finds no input there; use a debugger that one connects to, such as debugpy"


@dataclass(frozen=True)
class Debugged:
    """Rank that the user wants to debug.

    Attributes:
        rank: Number of the rank.
        terminal: Path of the terminal for the rank, or an empty string if the rank cannot use a terminal.
        remark: Why the rank cannot use a terminal, or an empty string if it can.
    """

    rank: int
    terminal: str = ""
    remark: str = ""


def check(rank: int, slots: Sequence[Slot]) -> int | None:
    """Return the rank to debug, or None if the setting is -1. Raises LaunchError if the job has no such rank."""
    if rank >= len(slots):
        raise LaunchError(
            f"--debug-rank (HOROVOD_DEBUG_RANK) must be a rank from 0 to {len(slots) - 1}, or -1 for none, got {rank}"
        )
    return None if rank < 0 else rank


def place(rank: int, slots: Sequence[Slot], terminal: str) -> Debugged:
    """Return the terminal for the rank to debug, or why the rank cannot use one.

    `terminal` is the path of the launcher's terminal, or an empty string if it has none.
    """
    host = next(slot.hostname for slot in slots if slot.rank == rank)
    if not hosts.is_local(host):
        return Debugged(rank, remark=f"rank {rank} is on host {host}, which does not have this terminal: {_CONNECT}")
    if not terminal:
        return Debugged(rank, remark=f"rank {rank} cannot be given a terminal, since there is none here: {_CONNECT}")
    return Debugged(rank, terminal)


def of_job(rank: int | None, slots: Sequence[Slot]) -> Debugged | None:
    """Decide whether the rank that is being debugged can use this process's terminal.

    Return None if no rank is being debugged.
    """
    return None if rank is None else place(rank, slots, terminal_here())


def terminal_here() -> str:
    """Return the path of the terminal if stdin and stdout are terminals, or else an empty string."""
    try:
        if not (os.isatty(0) and os.isatty(1)):
            return ""
        return os.ttyname(0)
    except OSError:  # Inside a container, the terminal might not have a name in /dev.
        return f"/proc/{os.getpid()}/fd/0"


@contextlib.contextmanager
def terminal_restored(rank: int | None) -> Iterator[None]:
    """Restore the terminal settings at the end of the job if a rank was debugged.

    A killed debugger can leave the terminal without echo.
    """
    try:
        before = termios.tcgetattr(0) if rank is not None else None
    except termios.error:  # Standard input is not a terminal.
        before = None
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(termios.error):  # Ignore the error if the terminal has hung up.
                termios.tcsetattr(0, termios.TCSANOW, before)


# The launcher sends its stdin to rank 0 in chunks, each of them once rank 0 has consumed the previous one.

PIECE = 1 << 16


class StdinSource:
    """Standard input of the launcher, which is read on request.

    Reading never blocks, even if the launcher is in the background.
    """

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self.requested = False  # True if rank 0 has consumed all data sent to it so far
        self._ended = False
        self.terminal = os.isatty(fd)

    @property
    def in_background(self) -> bool:
        """True if rank 0 wants input, but the launcher is in the background and cannot read the terminal."""
        if not self.terminal or not self.requested or self._ended:
            return False
        try:
            return os.tcgetpgrp(self._fd) != os.getpgrp()
        except OSError:  # A background process can read stdin if it is not the controlling terminal.
            return False

    def waiting_for(self) -> int | None:
        """Return the descriptor to poll for POLLIN, or None if rank 0 cannot take more data at present."""
        return self._fd if self.requested and not self._ended and not self.in_background else None

    def read(self) -> bytes | None:
        """Return the next chunk of input. It is empty at the end of the input, and None if no data is available."""
        try:
            data = os.read(self._fd, PIECE)
        except BlockingIOError:
            return None
        # Treat an unreadable stdin (closed, a directory, or a terminal that has hung up) as the end of the input.
        except OSError:
            if self.in_background:
                return None
            data = b""
        self.requested = False
        self._ended = not data
        return data

    def close(self) -> None:
        """Record that rank 0 no longer reads standard input."""
        self._ended = True
