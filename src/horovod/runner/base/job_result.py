"""Result of a job, as its launcher returns it, and descriptions of exit statuses."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field


@dataclass
class JobResult:
    """Exit code, messages and results of a job.

    Attributes:
        exit_code: 0 on success.
        message: What went wrong; on success possibly a remark.
        failed_rank: Rank that failed first, if a rank did.
        results: Contents of the workers' result files, by rank.
        headline: `message` without the last output of the rank that failed first.
        stopped_by: Signal that ended the job, if any.
        hosts: Hosts of the last epoch's ranks, in an elastic job.
    """

    exit_code: int
    message: str = ""
    failed_rank: int | None = None
    results: dict[int, bytearray] = field(default_factory=dict)
    headline: str = ""
    stopped_by: int | None = None
    hosts: dict[int, str] = field(default_factory=dict)


# Descriptions of processes' exit statuses.


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
