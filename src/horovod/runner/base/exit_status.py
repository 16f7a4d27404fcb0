"""Descriptions of processes' exit statuses."""

from __future__ import annotations

import signal


def describe_status(status: int) -> str:
    """Return text such as `exit code 3` or `killed by signal 9 (SIGKILL), ...`."""
    if status < 0:
        return f"killed by signal {_signal(-status)}"
    if status > 128 and _is_signal(status - 128):
        return f"exit code {status}, which is how shells report signal {_signal(status - 128)}"
    return f"exit code {status}"


def _is_signal(number: int) -> bool:
    return number in {int(sig) for sig in signal.Signals}


def _signal(number: int) -> str:
    hints = {
        signal.SIGKILL: ", perhaps because the machine or its container ran out of memory",
        signal.SIGSEGV: ", an invalid memory access in native code",
        signal.SIGBUS: ", perhaps because shared memory or a file system is full",
        signal.SIGABRT: ", native code aborted",
        signal.SIGILL: ", perhaps native code built for another processor",
    }
    if not _is_signal(number):
        return str(number)
    sig = signal.Signals(number)
    return f"{number} ({sig.name}){hints.get(sig, '')}"
