"""Detection that a job on the cluster has ended or cannot start. Callers pass the current time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.runner.kubernetes import pods
from horovod.runner.kubernetes.manifests import LAUNCHER, WORKER
from horovod.runner.kubernetes.pods import View

IMAGE_SECONDS = 30.0
"""Seconds for which failures to pull an image are tolerated, because a registry can be busy for a moment."""
LAST_SECONDS = 20.0
"""Seconds for the launcher to end by itself once its end is certain."""


@dataclass(frozen=True)
class Outcome:
    """Result of a job: its exit code and the lines to show to the user."""

    code: int
    lines: tuple[str, ...] = ()


class Judge:
    """Detector of the end of a job, from the states of its pods and Jobs.

    Args:
        name: Name of the job.
        expected: Number of worker pods that must start.
        patience: Seconds within which these pods must start.
        now: Current time (monotonic, s).
        age: Seconds since the job became active. An elastic job older than `patience` can have fewer pods than at its
            start.
    """

    def __init__(self, name: str, expected: int, patience: float, now: float, age: float = 0.0) -> None:
        self._name = name
        self._expected = expected
        self._patience = patience
        self._began = now
        self._now = now  # Time of the last call of `outcome`.
        # Time since which each condition has been true, for the conditions that are true.
        self._since: dict[str, float] = {}
        self._old = age > patience
        # True once all expected pods have started. Pods that are added later can wait without limit.
        self._complete = False
        self._last: View | None = None  # Last state of the launcher's pod after it has ended.
        self._over = ""  # "succeeded" or "failed" if the launcher's Job has ended, otherwise empty.

    def remember(self, launcher: View | None, job: Mapping[str, Any] | None) -> None:
        """Store how the launcher's pod and Job ended, because the cluster can delete them soon afterwards."""
        if launcher is not None and launcher.ended:
            self._last = launcher
        if job is not None and pods.job_state(job) in ("succeeded", "failed"):
            self._over = pods.job_state(job)

    def outcome(
        self,
        views: Sequence[View],
        jobs: Mapping[str, Mapping[str, Any]],
        events: Sequence[Mapping[str, Any]],
        now: float,
        log_read: bool,
    ) -> Outcome | None:
        """Return the outcome of the job, or None while the job continues.

        Args:
            views: Pods of the job.
            jobs: Kubernetes Jobs by component (launcher, worker).
            events: Events about pods that could not be created.
            now: Current time (monotonic, s).
            log_read: True if the launcher's output has been read completely.
        """
        self._now = now
        launcher = next((each for each in views if each.component == LAUNCHER), None)
        self.remember(launcher, jobs.get(LAUNCHER))
        launcher = launcher or self._last
        if launcher is not None and launcher.ended:
            return self._ended(launcher, views, now, log_read)
        if self._over and (launcher is None or LAUNCHER not in jobs):
            # The API can report the end of the Job before the end of its pod, because both are watched separately.
            if launcher is not None and not self._lasts("launcher", True, now, LAST_SECONDS):
                return None
            if self._over == "succeeded":
                return Outcome(0)
        if LAUNCHER not in jobs:
            return Outcome(1, (f"job {self._name} has been deleted",))
        failure = pods.job_failure(jobs[LAUNCHER])
        if failure and launcher is None:
            return Outcome(1, (f"the launcher's pod is gone: {failure}", *pods.post_mortem(views)))
        if self._lasts("workers", bool(pods.job_failure(jobs.get(WORKER, {}))), now, LAST_SECONDS):
            why = pods.job_failure(jobs[WORKER])
            return Outcome(1, tuple(pods.post_mortem(views)) or (f"the pods of the ranks have failed: {why}",))
        self._complete = self._complete or self._begun(views)
        return None if self._complete else self._not_started(views, events, now)

    def next_time(self) -> float | None:
        """Return the time at which the outcome can change although the cluster's state does not, or None."""
        times = [since + LAST_SECONDS for what, since in self._since.items() if what in ("workers", "launcher")]
        times += [since + IMAGE_SECONDS for what, since in self._since.items() if what.startswith("image ")]
        if not self._complete:
            times.append(self._began + self._patience)
            times += [since + LAST_SECONDS for what, since in self._since.items() if what == "late"]
        return min((each for each in times if each > self._now), default=None)

    def _ended(self, launcher: View, views: Sequence[View], now: float, log_read: bool) -> Outcome | None:
        if not log_read and not self._lasts("launcher", True, now, LAST_SECONDS):
            return None
        if launcher.state == "succeeded":
            return Outcome(0)
        lines = pods.post_mortem(views)
        if launcher.code is None or launcher.reason == "OOMKilled" or not launcher.reason.startswith("exit code"):
            lines.insert(0, f"the launcher's pod {launcher.name} has failed: {launcher.trouble}")
        return Outcome(launcher.code or 1, tuple(lines))

    def _begun(self, views: Sequence[View]) -> bool:
        """Return True if all expected pods have started. Additional pods can wait without limit."""
        return pods.runs(views) and (self._old or pods.started(views) >= self._expected)

    def _not_started(self, views: Sequence[View], events: Sequence[Mapping[str, Any]], now: float) -> Outcome | None:
        stuck = self._without_image(views, now)
        able = sum(each.component == WORKER and not each.going and each not in stuck for each in views)
        for each in stuck:
            if each.component == LAUNCHER or able < self._expected:
                return Outcome(1, (f"pod {each.name} cannot start: {each.trouble}",))
        waits = now >= self._began + self._patience
        # A running launcher has its own time limit and can report more details.
        if waits and self._lasts("late", True, now, LAST_SECONDS if pods.runs(views) else 0.0):
            causes = pods.not_created(events)
            text = f"waited {self._patience:g} s (--start-timeout): {pods.waiting_line(views, self._expected)}"
            return Outcome(1, ("; ".join([text, *causes]),))
        return None

    def _without_image(self, views: Sequence[View], now: float) -> list[View]:
        """Return the pods whose images could not be pulled in time."""
        found = []
        for each in views:
            pulls = each.state == "waiting" and each.reason in pods.IMAGE
            seconds = 0.0 if each.reason in pods.NEVER else IMAGE_SECONDS
            if self._lasts(f"image {each.name}", pulls, now, seconds):
                found.append(each)
        return found

    def _lasts(self, what: str, holds: bool, now: float, seconds: float) -> bool:
        """Return True if the condition named `what` has been true for `seconds`. `holds` is its current value."""
        if not holds:
            self._since.pop(what, None)
            return False
        # Add the same numbers as `next_time`, so that rounding cannot make the results differ.
        return now >= self._since.setdefault(what, now) + seconds
