"""Pod and Job states from API responses, their descriptions for users, and the detection of a job's end.

`Judge` detects that a job has ended or cannot start. Callers pass the current time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from horovod.runner.kubernetes.manifests import COMPONENT, LAUNCHER, WORKER
from horovod.runner.kubernetes.request import CONTAINER

INDEX = "batch.kubernetes.io/job-completion-index"
_QUIET = ("ContainerCreating", "PodInitializing", "")
NEVER = ("InvalidImageName", "ErrImageNeverPull")
"""Reasons for waiting that time does not resolve."""
IMAGE = ("ImagePullBackOff", "ErrImagePull", *NEVER)
_ADVICE = {
    "Unschedulable": "",
    "OOMKilled": "--memory is too small",
    "CreateContainerConfigError": "a Secret or ConfigMap is missing",
}


@dataclass(frozen=True)
class View:
    """State of a pod, with the reason for this state.

    Attributes:
        name: Name of the pod.
        component: LAUNCHER or WORKER.
        index: Completion index in the Indexed Job; empty for the launcher.
        node: Node on which the pod runs; empty if it is not scheduled.
        state: "waiting", "running", "succeeded" or "failed".
        reason: Why the pod waits or has failed; empty if unknown.
        message: Details of the reason.
        code: Exit code of the pod's container, or None if it has not ended.
        going: True if the pod has been deleted and is in its grace period.
    """

    name: str
    component: str
    index: str
    node: str
    state: str
    reason: str = ""
    message: str = ""
    code: int | None = None
    going: bool = False

    @property
    def ended(self) -> bool:
        """True if all containers of the pod have terminated."""
        return self.state in ("succeeded", "failed")

    @property
    def trouble(self) -> str:
        """Explanation of why the pod is waiting or has failed, or an empty string if unknown."""
        advice = _ADVICE.get(self.reason, "")
        if self.reason == "CreateContainerConfigError" and "not found" not in self.message:
            advice = ""  # Give no advice, because the error is temporary: the kubelet retries until it sees the Secret.
        return ": ".join(filter(None, [self.reason, " ".join(self.message.split()), advice]))


def view(pod: Mapping[str, Any]) -> View:
    """Return the state of a pod, given its API object."""
    metadata, status = pod.get("metadata", {}), pod.get("status", {})
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {}) or {}
    phase = status.get("phase", "Pending")
    code = _exit_code(status)
    reason = (
        metadata.get("name", "?"),
        labels.get(COMPONENT, ""),
        annotations.get(INDEX, labels.get(INDEX, "")),
        pod.get("spec", {}).get("nodeName", ""),
    )
    going = "deletionTimestamp" in metadata
    if phase == "Succeeded":
        return View(*reason, "succeeded", code=code, going=going)
    if phase == "Failed":
        return View(*reason, "failed", *_why_failed(status), code=code, going=going)
    if phase == "Running":
        return View(*reason, "running", code=code, going=going)
    return View(*reason, "waiting", *_why_waiting(status), going=going)


def views(found: Iterable[Mapping[str, Any]]) -> list[View]:
    """Return the states of a job's pods: the launcher's pod first, then the workers in index order."""
    made = [view(each) for each in found]
    return sorted(made, key=lambda one: (one.component != LAUNCHER, int(one.index or -1), one.name))


def steady(views: Sequence[View], previous: dict[str, View]) -> list[View]:
    """Return the states, with the last error of each pod whose image could not be pulled.

    The API stops reporting this error while the pod waits for the next attempt. Therefore, `previous` stores it by pod
    name. The caller must pass the same dict in each call.
    """
    made = []
    for each in views:
        if each.reason == "ErrImagePull":
            previous[each.name] = each
        answer = previous.get(each.name)
        again = each.reason == "ImagePullBackOff" and answer is not None
        made.append(replace(each, reason=answer.reason, message=answer.message) if again and answer else each)
    return made


def _why_waiting(status: Mapping[str, Any]) -> tuple[str, str]:
    for each in status.get("conditions", []):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return str(each.get("reason", "Unschedulable")), str(each.get("message", ""))
    for each in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        waiting = each.get("state", {}).get("waiting")
        if waiting and waiting.get("reason", "") not in _QUIET:
            image = f"image {each.get('image')}" if waiting["reason"] in IMAGE else ""
            return str(waiting["reason"]), ": ".join(filter(None, [image, str(waiting.get("message", ""))]))
    return "", ""


def _why_failed(status: Mapping[str, Any]) -> tuple[str, str]:
    if status.get("reason"):  # Pod-level reason, such as Evicted, NodeLost or DeadlineExceeded
        return str(status["reason"]), str(status.get("message", ""))
    for each in status.get("conditions", []):
        if each.get("type") == "DisruptionTarget" and each.get("status") == "True":
            return str(each.get("reason", "DisruptionTarget")), str(each.get("message", ""))
    ended = _terminated(status) or _not_prepared(status)
    reason = str(ended.get("reason", "Error"))
    if reason == "Error" and "exitCode" in ended:
        reason = f"exit code {ended['exitCode']}"
    before = f"init container {ended['name']}: " if "name" in ended else ""
    return before + reason, str(ended.get("message", "")).strip()[-1000:]


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for each in status.get("containerStatuses", []):
        if each.get("name") == CONTAINER and "terminated" in each.get("state", {}):
            found: Mapping[str, Any] = each["state"]["terminated"]
            return found
    return {}


def _not_prepared(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the exit state and the name of the first init container that failed."""
    for each in status.get("initContainerStatuses", []):
        found = each.get("state", {}).get("terminated", {})
        if found.get("exitCode"):
            return {**found, "name": each.get("name", "")}
    return {}


def _exit_code(status: Mapping[str, Any]) -> int | None:
    code = _terminated(status).get("exitCode")
    return None if code is None else int(code)


def job_failure(job: Mapping[str, Any]) -> str:
    """Return why a Job failed, or an empty string if it has not failed."""
    for each in job.get("status", {}).get("conditions", []):
        if each.get("type") in ("Failed", "FailureTarget") and each.get("status") == "True":
            return ": ".join(filter(None, [each.get("reason", ""), each.get("message", "")])) or "failed"
    return ""


def job_state(job: Mapping[str, Any]) -> str:
    """Return the state of a Job: "suspended", "waiting", "running", "succeeded" or "failed"."""
    status = job.get("status", {})
    for each in status.get("conditions", []):
        if each.get("status") == "True" and each.get("type") in ("Complete", "Failed"):
            return "succeeded" if each["type"] == "Complete" else "failed"
    if job.get("spec", {}).get("suspend"):
        return "suspended"
    return "running" if status.get("active") else "waiting"


def not_created(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the distinct reasons why Jobs could not create pods, such as a quota or a policy."""
    found = {
        str(each.get("message", ""))
        for each in events
        if each.get("reason") == "FailedCreate" and each.get("involvedObject", {}).get("kind") == "Job"
    }
    return sorted(filter(None, found))


def active_seconds(job: Mapping[str, Any], now: float) -> float:
    """Return the seconds since the Job started. `now` is the result of `time.time()`."""
    began = job.get("status", {}).get("startTime")
    return now - datetime.fromisoformat(began.replace("Z", "+00:00")).timestamp() if began else 0.0


def runs(views: Iterable[View]) -> bool:
    """Return True if the launcher's pod is running."""
    return any(each.component == LAUNCHER and each.state == "running" for each in views)


def started(views: Iterable[View]) -> int:
    """Return the number of worker pods that are running or have run. A failed pod and its replacement count as one."""
    return len(_numbers(views, "running", "succeeded", "failed"))


def _numbers(views: Iterable[View], *states: str) -> set[str]:
    """Return the completion indices of the worker pods that are in one of the given states."""
    return {each.index for each in views if each.component == WORKER and not each.going and each.state in states}


def waiting_line(views: Sequence[View], expected: int) -> str:
    """Return a line about worker pods that have not started, or an empty string if `expected` pods have started."""
    workers = [each for each in views if each.component == WORKER and not each.going]
    if started(views) >= expected and not any(each.state == "waiting" for each in views):
        return ""
    reasons: dict[str, list[View]] = {}
    for each in views:
        if each.state == "waiting" and each.trouble:
            reasons.setdefault(each.trouble, []).append(each)
    texts = [f"{_pods(found)}: {trouble}" for trouble, found in reasons.items()]
    missing = expected - len(workers)
    if missing > 0 and workers:
        texts.append(f"{missing} not created yet")
    there = _numbers(views, "running", "succeeded")
    failed = _numbers(views, "failed") - there
    return (
        f"{len(there)} of {expected} pods have started"
        + (f", {len(failed)} {'has' if len(failed) == 1 else 'have'} failed" if failed else "")
        + (f"; {'; '.join(texts)}" if texts else "")
    )


def _pods(found: Sequence[View]) -> str:
    first = "the launcher's pod" if found[0].component == LAUNCHER else f"pod {found[0].name}"
    more = len(found) - 1
    return first + (f" and {more} more" if more else "")


def post_mortem(views: Iterable[View]) -> list[str]:
    """Return one line for each failed worker pod, because the launcher does not see why Kubernetes terminated a pod."""
    return [
        f"pod {each.name}{f' on {each.node}' if each.node else ''} has failed: {each.trouble}"
        for each in views
        if each.state == "failed" and each.component == WORKER
    ]


def table(views: Sequence[View]) -> str:
    """Return a table of the job's pods as text for `horovodrun kubernetes status`."""
    rows = [("POD", "RANKS' POD", "NODE", "STATE", "WHY")]
    for each in views:
        state = "going" if each.going and not each.ended else each.state
        what = each.index or ("launcher" if each.component == LAUNCHER else "")
        rows.append((each.name, what, each.node or "-", state, each.trouble or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    padded = [[*(word.ljust(width) for word, width in zip(row, widths, strict=False)), row[4]] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def split_time(line: bytes) -> tuple[str, bytes]:
    """Split a log line into its timestamp and its text. The timestamp is empty if the line has none."""
    time, space, text = line.partition(b" ")
    if not space or b"T" not in time or not time[:4].isdigit():
        return "", line
    return time.decode(errors="replace"), text


IMAGE_SECONDS = 30.0
"""Seconds for which failures to pull an image are tolerated, because a registry can be busy for a moment."""
LAST_SECONDS = 20.0
"""Seconds that the launcher has to exit on its own once the job is certain to end."""


@dataclass(frozen=True)
class JobOutcome:
    """Result of a job: its exit code and the lines to show to the user."""

    code: int
    lines: tuple[str, ...] = ()


class Judge:
    """Observer that detects the end of a job from the states of its pods and Jobs.

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
        self._now = now
        # Maps each condition that is true to the time when it became true.
        self._since: dict[str, float] = {}
        self._old = age > patience
        # True once all expected pods have started. Pods that are added later may wait indefinitely.
        self._complete = False
        # The final state of the launcher's pod, or None until it has terminated.
        self._last: View | None = None
        # `_over` is "succeeded" or "failed" once the launcher's Job has ended. It is empty before that.
        self._over = ""

    def remember(self, launcher: View | None, job: Mapping[str, Any] | None) -> None:
        """Store how the launcher's pod and Job ended, because the cluster may delete them soon afterwards."""
        if launcher is not None and launcher.ended:
            self._last = launcher
        if job is not None and job_state(job) in ("succeeded", "failed"):
            self._over = job_state(job)

    def outcome(
        self,
        views: Sequence[View],
        jobs: Mapping[str, Mapping[str, Any]],
        events: Sequence[Mapping[str, Any]],
        now: float,
        log_read: bool,
    ) -> JobOutcome | None:
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
            # The Job can appear to end before its pod does, because both are watched separately.
            if launcher is not None and not self._lasts("launcher", True, now, LAST_SECONDS):
                return None
            if self._over == "succeeded":
                return JobOutcome(0)
        if LAUNCHER not in jobs:
            return JobOutcome(1, (f"job {self._name} has been deleted",))
        failure = job_failure(jobs[LAUNCHER])
        if failure and launcher is None:
            return JobOutcome(1, (f"the launcher's pod is gone: {failure}", *post_mortem(views)))
        if self._lasts("workers", bool(job_failure(jobs.get(WORKER, {}))), now, LAST_SECONDS):
            why = job_failure(jobs[WORKER])
            return JobOutcome(1, tuple(post_mortem(views)) or (f"the pods of the ranks have failed: {why}",))
        self._complete = self._complete or self._has_started(views)
        return None if self._complete else self._not_started(views, events, now)

    def next_time(self) -> float | None:
        """Return the next time at which the expiry of a time limit can change the outcome, or None."""
        times = [since + LAST_SECONDS for what, since in self._since.items() if what in ("workers", "launcher")]
        times += [since + IMAGE_SECONDS for what, since in self._since.items() if what.startswith("image ")]
        if not self._complete:
            times.append(self._began + self._patience)
            times += [since + LAST_SECONDS for what, since in self._since.items() if what == "late"]
        return min((each for each in times if each > self._now), default=None)

    def _ended(self, launcher: View, views: Sequence[View], now: float, log_read: bool) -> JobOutcome | None:
        if not log_read and not self._lasts("launcher", True, now, LAST_SECONDS):
            return None
        if launcher.state == "succeeded":
            return JobOutcome(0)
        lines = post_mortem(views)
        if launcher.code is None or launcher.reason == "OOMKilled" or not launcher.reason.startswith("exit code"):
            lines.insert(0, f"the launcher's pod {launcher.name} has failed: {launcher.trouble}")
        return JobOutcome(launcher.code or 1, tuple(lines))

    def _has_started(self, views: Sequence[View]) -> bool:
        """Return True if all expected pods have started. Additional pods can stay pending indefinitely."""
        return runs(views) and (self._old or started(views) >= self._expected)

    def _not_started(self, views: Sequence[View], events: Sequence[Mapping[str, Any]], now: float) -> JobOutcome | None:
        stuck = self._without_image(views, now)
        able = sum(each.component == WORKER and not each.going and each not in stuck for each in views)
        for each in stuck:
            if each.component == LAUNCHER or able < self._expected:
                return JobOutcome(1, (f"pod {each.name} cannot start: {each.trouble}",))
        waits = now >= self._began + self._patience
        # A running launcher has the same time limit and reports more details, so wait LAST_SECONDS longer for it.
        if waits and self._lasts("late", True, now, LAST_SECONDS if runs(views) else 0.0):
            causes = not_created(events)
            text = f"waited {self._patience:g} s (--start-timeout): {waiting_line(views, self._expected)}"
            return JobOutcome(1, ("; ".join([text, *causes]),))
        return None

    def _without_image(self, views: Sequence[View], now: float) -> list[View]:
        """Return the pods whose images could not be pulled in time."""
        found = []
        for each in views:
            pulls = each.state == "waiting" and each.reason in IMAGE
            seconds = 0.0 if each.reason in NEVER else IMAGE_SECONDS
            if self._lasts(f"image {each.name}", pulls, now, seconds):
                found.append(each)
        return found

    def _lasts(self, what: str, holds: bool, now: float, seconds: float) -> bool:
        """Return True if the condition named `what` has been true for `seconds`. `holds` is True if it is true now."""
        if not holds:
            self._since.pop(what, None)
            return False
        # Compute the sum exactly as `next_time` does, because a rounding difference would delay the decision.
        return now >= self._since.setdefault(what, now) + seconds
