"""Decisions of a Job controller that behaves like that of Kubernetes 1.28, limited to what this project needs.

Each pod has a finalizer until it is counted, so that no pod is missed. If the Job has a failure policy, a deleted pod
is counted and replaced once its processes have ended. Without a failure policy, it counts as failed immediately.
"""

from dataclasses import dataclass, field
from typing import Any

from tools.kubernetes_bed import kept

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
FIRST_BACKOFF, LAST_BACKOFF = 10.0, 360.0

Pod = dict[str, Any]


@dataclass
class Record:
    """Results of one Job's pods, as counted so far.

    Attributes:
        counted: Uids of the counted pods.
        streak: Number of failures since the last success.
    """

    failed: int = 0
    done: set[int] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)
    streak: int = 0
    last_failure: float = 0.0
    failing: bool = False


@dataclass
class Plan:
    """Actions for the controller to take on one Job.

    Attributes:
        create: Index of each pod to create; the index is None if the Job is not Indexed.
        delete: Pods to delete.
        release: Pods from which to remove the finalizer.
        condition: Condition to set.
        active: Number of active pods.
        wake: Seconds until the next check, or None.
    """

    create: list[int | None] = field(default_factory=list)
    delete: list[Pod] = field(default_factory=list)
    release: list[Pod] = field(default_factory=list)
    # Type, reason and message of the Job condition to set.
    condition: tuple[str, str, str] | None = None
    active: int = 0
    wake: float | None = None


def finished(job: dict[str, Any]) -> bool:
    """Return True if the Job is complete or has failed."""
    found = job.get("status", {}).get("conditions") or []
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in found)


def index_of(pod: Pod) -> int | None:
    """Return the pod's index in its Indexed Job, or None if it has no index."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX)
    return None if text is None else int(text)


def is_terminating(pod: Pod) -> bool:
    """Return True if the pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def has_ended(pod: Pod) -> bool:
    """Return True if all processes of the pod have exited."""
    deleted = is_terminating(pod) and pod["metadata"].get("deletionGracePeriodSeconds") == 0
    return deleted or pod["status"].get("phase") in ("Succeeded", "Failed")


def decide(job: dict[str, Any], pods: list[Pod], record: Record, now: float) -> Plan:
    """Count finished pods in `record`, and return the Job's next actions. `now` is monotonic time in seconds."""
    spec, more = job["spec"], kept.fields(job)
    policy = more.get("podFailurePolicy")
    plan = Plan()
    _count(pods, record, policy, plan, now)
    living = [each for each in pods if not has_ended(each)]
    existing = [each for each in living if policy or not is_terminating(each)]
    plan.active = sum(not is_terminating(each) for each in living)
    if finished(job):
        return plan
    if record.failing or record.failed > spec.get("backoffLimit", 6):
        record.failing = True
        plan.delete = [each for each in living if not is_terminating(each)]
        text = "Job has reached the specified backoff limit"
        plan.condition = ("FailureTarget" if living else "Failed", "BackoffLimitExceeded", text)
    elif more["suspend"]:
        plan.delete = [each for each in living if not is_terminating(each)]
    elif len(record.done) >= spec.get("completions", 1):
        plan.condition = ("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
    else:
        _create(spec, more["completionMode"] == "Indexed", existing, record, plan, now)
    return plan


def _count(pods: list[Pod], record: Record, policy: dict[str, Any] | None, plan: Plan, now: float) -> None:
    for each in pods:
        uid = each["metadata"]["uid"]
        if has_ended(each) and FINALIZER in each["metadata"].get("finalizers", ()):
            plan.release.append(each)
        lost = has_ended(each) if policy else has_ended(each) or is_terminating(each)
        if not lost or uid in record.counted:
            continue
        record.counted.add(uid)
        number = index_of(each)
        if each["status"].get("phase") == "Succeeded":
            record.done.add(len(record.done) if number is None else number)
            record.streak = 0
        elif not (policy and _ignored(each, policy)):
            record.failed += 1
            record.streak += 1
            record.last_failure = now


def _ignored(pod: Pod, policy: dict[str, Any]) -> bool:
    pods = {(each["type"], each["status"]) for each in pod["status"].get("conditions", [])}
    # Add the condition DisruptionTarget here, because kubelets set it only since Kubernetes 1.26.
    if pod["status"].get("reason") in ("Evicted", "NodeShutdown", "NodeLost"):
        pods.add(("DisruptionTarget", "True"))
    return any(
        rule["action"] == "Ignore" and (each["type"], each.get("status", "True")) in pods
        for rule in policy["rules"]
        for each in rule.get("onPodConditions", [])
    )


def _create(spec: dict[str, Any], indexed: bool, pods: list[Pod], record: Record, plan: Plan, now: float) -> None:
    most = spec.get("parallelism", 1)
    if indexed:
        used = {index_of(each) for each in pods} | record.done
        indices: list[int | None] = [n for n in range(spec["completions"]) if n not in used]
    else:
        indices = [None] * (spec.get("completions", 1) - len(record.done) - len(pods))
    indices = indices[: max(0, most - len(pods))]
    if not indices:
        return
    wait = 0.0
    if record.streak:
        wait = record.last_failure + min(FIRST_BACKOFF * 2 ** (record.streak - 1), LAST_BACKOFF) - now
    if wait > 0:
        plan.wake = wait
    else:
        plan.create = indices
