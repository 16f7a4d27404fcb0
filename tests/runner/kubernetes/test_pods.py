import pytest

from horovod.runner.kubernetes import pods
from tests.runner.kubernetes import statuses
from tests.runner.kubernetes.statuses import pod


@pytest.mark.parametrize(
    ("status", "state", "trouble", "code"),
    [
        (statuses.RUNNING, "running", "", None),
        (statuses.CREATING, "waiting", "", None),
        ({}, "waiting", "", None),
        (
            statuses.UNSCHEDULABLE,
            "waiting",
            "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            None,
        ),
        (
            statuses.pulling("ImagePullBackOff", "Back-off"),
            "waiting",
            "ImagePullBackOff: image app:1: Back-off",
            None,
        ),
        (
            statuses.pulling("CreateContainerConfigError", 'secret "x" not found'),
            "waiting",
            'CreateContainerConfigError: secret "x" not found: a Secret or ConfigMap is missing',
            None,
        ),
        (
            statuses.pulling("CreateContainerConfigError", "failed to sync secret cache"),
            "waiting",
            "CreateContainerConfigError: failed to sync secret cache",
            None,
        ),
        (statuses.EVICTED, "failed", "Evicted: The node was low on resource: memory.", None),
        (
            statuses.PREEMPTED,
            "failed",
            "PreemptionByScheduler: preempting to accommodate a higher priority pod",
            None,
        ),
        (statuses.ended(0), "succeeded", "", 0),
        (statuses.ended(3, message="a\nb\n"), "failed", "exit code 3: a b", 3),
        (statuses.ended(137, "OOMKilled"), "failed", "OOMKilled: --memory is too small", 137),
        (statuses.not_prepared(2, "no data"), "failed", "init container fills: exit code 2: no data", None),
        ({**statuses.not_prepared(143), **statuses.ended(3)}, "failed", "exit code 3", 3),
    ],
)
def test_states(status, state, trouble, code):
    found = pods.view(pod("p", index="4", **status))
    assert (found.state, found.trouble, found.code, found.index) == (state, trouble, code, "4")


def test_equal_reasons_are_told_once():
    found = [pods.view(pod(f"w{n}", **statuses.UNSCHEDULABLE)) for n in range(3)]
    found.append(pods.view(pod("w3", **statuses.RUNNING)))
    assert pods.waiting_line(found, 5) == (
        "1 of 5 pods have started; pod w0 and 2 more: Unschedulable: 0/3 nodes are available: 3 Insufficient "
        "nvidia.com/gpu.; 1 not created yet"
    )
    assert pods.waiting_line(found[3:], 1) == ""
    waits = pods.view(pod("l", "launcher", **statuses.pulling("ErrImagePull", "x")))
    assert pods.waiting_line([found[3], waits], 1) == (
        "1 of 1 pods have started; the launcher's pod: ErrImagePull: image app:1: x"
    )


def test_quota():
    other = {**statuses.QUOTA, "reason": "SuccessfulCreate"}
    assert pods.not_created([statuses.QUOTA, statuses.QUOTA, other]) == [statuses.QUOTA["message"]]


def test_table():
    given = [pod("w", index="1", **statuses.RUNNING), pod("l", "launcher", node="", **statuses.EVICTED)]
    text = pods.table(pods.views(given))
    assert text.splitlines() == [
        "POD  RANKS' POD  NODE    STATE    WHY",
        "l    launcher    -       failed   Evicted: The node was low on resource: memory.",
        "w    1           node-a  running  -",
    ]


def test_states_of_jobs():
    assert pods.job_state({"spec": {"suspend": True}}) == "suspended"
    assert pods.job_state({"spec": {}, "status": {"active": 1}}) == "running"
    assert pods.job_state({"spec": {}}) == "waiting"
    assert pods.job_state(statuses.FAILED_JOB) == "failed"
    assert pods.job_state({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}) == "succeeded"
    assert pods.job_failure(statuses.FAILED_JOB) == "BackoffLimitExceeded"
    assert pods.job_failure({}) == ""


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (b"2026-01-01T00:00:00.123Z hello there", ("2026-01-01T00:00:00.123Z", b"hello there")),
        (b"2026-01-01T00:00:00Z ", ("2026-01-01T00:00:00Z", b"")),
        (b"no time", ("", b"no time")),
        (b"", ("", b"")),
    ],
)
def test_lines_of_logs(line, parts):
    assert pods.split_time(line) == parts
