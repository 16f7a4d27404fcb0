"""Admission of new workers to an elastic job, and notification of its members about changes.

The caller passes all times (monotonic, seconds).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from horovod._version import __version__
from horovod.common.contract.membership import Facts, HostUpdateResult, decode_facts
from horovod.common.contract.settings import BY_NAME
from horovod.runner.elastic.actions import TOGETHER
from horovod.runner.elastic.workers import Worker


class Admission:
    """Timers and notifications for the admission of new workers to one job."""

    def __init__(self, gather: float | None = None) -> None:
        """Create the state of a new job.

        Args:
            gather: Seconds for which ready workers of the first epoch wait for workers that are starting. The default
                is the same as in later epochs.
        """
        self._wait = TOGETHER if gather is None else gather
        self._ready_since: float | None = None  # Time since which a new worker has been waiting, or None.
        self._told = HostUpdateResult.no_update  # Changes about which the members of this epoch have been notified.

    def next_time(self, now: float) -> float | None:
        """Return the time at which ready workers stop waiting for others, or None if no worker waits."""
        if self._ready_since is None or now >= self._ready_since + self._wait:
            return None
        return self._ready_since + self._wait

    def together(self, waiting: Iterable[Worker], others_start: bool, now: float) -> bool:
        """Return True if the new workers among `waiting` do not need to wait for workers that are starting."""
        if all(worker.survivor for worker in waiting):
            self._ready_since = None
        elif self._ready_since is None:
            self._ready_since = now
        if not others_start:
            return True
        return self._ready_since is not None and now >= self._ready_since + self._wait

    def update(self, added: bool, removed: bool) -> HostUpdateResult:
        """Return the changes about which the members must be notified now, each only once per epoch.

        Args:
            added: True if workers can join.
            removed: True if members must leave.
        """
        update = HostUpdateResult.no_update
        if added:
            update |= HostUpdateResult.added
        if removed:
            update |= HostUpdateResult.removed
        if not update & ~self._told:
            return HostUpdateResult.no_update
        self._told |= update
        return update

    def formed(self) -> None:
        """Record that a new epoch was formed. Its members have received no notifications yet."""
        self._told = HostUpdateResult.no_update
        self._wait = TOGETHER

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by `seconds`, because the launcher was stopped for this time."""
        self._ready_since = None if self._ready_since is None else self._ready_since + seconds


# Ranks with different versions of horovod could misunderstand each other, and another version of Python might be unable
# to read the training state. Another version of the program could train differently without an error. If hosts are
# updated one by one on purpose, users can allow a different program, which then only causes a warning.

_CODE = "HOROVOD_ELASTIC_CODE"


class AdmissionResult(NamedTuple):
    """Decision whether a new worker can join the job.

    Attributes:
        refusal: Reason why the worker cannot join. Empty if it can.
        warning: Message to show to the user. Empty if there is none.
    """

    refusal: str = ""
    warning: str = ""


class Newcomers:
    """Check whether a new worker runs the same versions of horovod, Python and the program as the job.

    The first worker determines the Python version and the program of the job.

    Args:
        same_code: True to refuse a worker whose program differs. It is False if HOROVOD_ELASTIC_CODE is `any`.
        version: Version of horovod. The default is the launcher's version.
    """

    def __init__(self, same_code: bool = True, version: str = __version__) -> None:
        self._same_code = same_code
        self._version = version
        self._job: Facts | None = None  # facts about the first worker

    @classmethod
    def wanted(cls, environ: Mapping[str, str]) -> Newcomers:
        """Create the check that the environment variables request. Raises ValueError if a value is invalid."""
        return cls(BY_NAME[_CODE].parse(environ.get(_CODE, "")) != "any")

    def judge(self, told: bytes) -> AdmissionResult:
        """Decide whether a worker can join. `told` contains the encoded `Facts` from the worker's first request."""
        try:
            facts = decode_facts(told)
        except ValueError:
            return AdmissionResult(
                "what it says of itself cannot be read: it has another version of horovod than the launcher"
            )
        if facts.version != self._version:
            return _differs("horovod", facts.version, "launcher has", self._version)
        if self._job is None:
            self._job = facts
        job = self._job
        if facts.python != job.python:
            return _differs("Python", facts.python, "job's workers have", job.python)
        if facts.code == job.code:
            return AdmissionResult()
        if facts.program == job.program:
            differs = f"its copy of {facts.program} differs from the one that the job runs"
        else:
            differs = f"its program is {facts.program or 'no file'}, but the job's is {job.program or 'no file'}"
        if self._same_code:
            return AdmissionResult(
                f"{differs}; install the same on all hosts, or let it in by HOROVOD_ELASTIC_CODE=any"
            )
        return AdmissionResult(warning=f"{differs}, which HOROVOD_ELASTIC_CODE=any allows")


def _differs(what: str, its: str, others: str, theirs: str) -> AdmissionResult:
    return AdmissionResult(f"it has {what} {its}, but the {others} {what} {theirs}; install the same on all hosts")
