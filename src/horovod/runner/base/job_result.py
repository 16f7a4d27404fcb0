"""Launcher error, job result, and descriptions of process exit statuses."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field


class LaunchError(ValueError):
    """Error raised if a job cannot start as requested, because a flag, host, variable or file is invalid."""


class AgentError(RuntimeError):
    """Error raised if an agent cannot start, exits too early, or sends an invalid message."""


class OutcomeError(RuntimeError):
    """Error that `horovod.run` raises if a function's result or exception cannot be sent to the caller."""


@dataclass
class JobResult:
    """Exit code, messages and results of a job.

    Attributes:
        exit_code: Exit code, which is 0 if the job has succeeded.
        message: Description of the failure. If the job has succeeded, a remark or an empty string.
        failed_rank: Rank that failed first, or None.
        results: Contents of the ranks' result files by rank.
        headline: `message` without the output of the rank that failed first.
        stopped_by: Signal that ended the job, or None.
        hosts: Hosts of the last epoch's ranks. Only in elastic jobs.
    """

    exit_code: int
    message: str = ""
    failed_rank: int | None = None
    results: dict[int, bytearray] = field(default_factory=dict)
    headline: str = ""
    stopped_by: int | None = None
    hosts: dict[int, str] = field(default_factory=dict)


def describe_status(status: int) -> str:
    """Describe an exit status, such as `exit code 3` or `killed by signal 9 (SIGKILL), ...`."""
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
