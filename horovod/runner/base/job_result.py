"""What came of a job."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class JobResult:
    """`exit_code` 0 when all is well, else `message` says what happened, `headline` the same without the last words of
    the rank that failed first. Where all is well `message` may be a remark. `results`: what workers left, by rank.
    `stopped_by`: the signal that ended it. `hosts`: of the last ranks of an elastic job.
    """

    exit_code: int
    message: str = ""
    failed_rank: int | None = None
    results: dict[int, bytearray] = field(default_factory=dict)
    headline: str = ""
    stopped_by: int | None = None
    hosts: dict[int, str] = field(default_factory=dict)
