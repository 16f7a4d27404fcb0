"""Result of a job, as its launcher returns it."""

from __future__ import annotations

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
