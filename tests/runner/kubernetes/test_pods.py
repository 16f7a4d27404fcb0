import pytest

from horovod.runner.kubernetes import pods
from horovod.runner.kubernetes.pods import IMAGE_SECONDS, LAST_SECONDS, JobOutcome, Judge
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
        (statuses.pulling("ImagePullBackOff", "Back-off"), "waiting", "ImagePullBackOff: image app:1: Back-off", None),
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
        (statuses.PREEMPTED, "failed", "PreemptionByScheduler: preempting to accommodate a higher priority pod", None),
        (statuses.terminated(0), "succeeded", "", 0),
        (statuses.terminated(3, message="a\nb\n"), "failed", "exit code 3: a b", 3),
        (statuses.terminated(137, "OOMKilled"), "failed", "OOMKilled: --memory is too small", 137),
        (statuses.init_failed(2, "no data"), "failed", "init container fills: exit code 2: no data", None),
        ({**statuses.init_failed(143), **statuses.terminated(3)}, "failed", "exit code 3", 3),
    ],
)
def test_states(status, state, trouble, code):
    found = pods.view(pod("p", index="4", **status))
    assert (found.state, found.trouble, found.code, found.index) == (state, trouble, code, "4")


def test_equal_reasons_are_reported_once():
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
    listed = [pod("w", index="1", **statuses.RUNNING), pod("l", "launcher", node="", **statuses.EVICTED)]
    text = pods.table(pods.views(listed))
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


JOBS = {"launcher": {}, "worker": {}}


def judged(judge, listed, now=0.0, jobs=JOBS, events=(), log_read=False):
    return judge.outcome([pods.view(each) for each in listed], jobs, events, now, log_read)


def launcher(**status):
    return pod("l", "launcher", **status)


def test_the_launchers_exit_code_is_returned_after_its_output():
    judge = Judge("train", 1, 60, 0)
    assert judged(judge, [launcher(**statuses.RUNNING), pod("w", **statuses.RUNNING)]) is None
    assert judge.next_time() is None
    pods = [launcher(**statuses.terminated(7))]
    assert judged(judge, pods) is None
    assert judge.next_time() == LAST_SECONDS
    assert judged(judge, pods, log_read=True) == JobOutcome(7)
    assert judged(judge, pods, now=LAST_SECONDS) == JobOutcome(7)
    assert judged(judge, [launcher(**statuses.terminated(0))], log_read=True) == JobOutcome(0)


def test_killed_pods_are_reported_beside_launcher_output():
    pods = [launcher(**statuses.terminated(137)), pod("w", **statuses.terminated(137, "OOMKilled"))]
    assert judged(Judge("train", 1, 60, 0), pods, log_read=True) == JobOutcome(
        137, ("pod w on node-a has failed: OOMKilled: --memory is too small",)
    )


def test_an_evicted_launcher_gives_no_reason():
    assert judged(Judge("train", 1, 60, 0), [launcher(**statuses.EVICTED)], log_read=True) == JobOutcome(
        1, ("the launcher's pod l has failed: Evicted: The node was low on resource: memory.",)
    )


def test_a_launcher_whose_pod_is_gone():
    jobs = {"launcher": statuses.FAILED_JOB, "worker": {}}
    assert judged(Judge("train", 1, 60, 0), [], jobs=jobs) == JobOutcome(
        1, ("the launcher's pod is gone: BackoffLimitExceeded",)
    )
    assert judged(Judge("train", 1, 60, 0), [], jobs={}) == JobOutcome(1, ("job train has been deleted",))


def test_images_that_cannot_be_pulled():
    judge = Judge("train", 1, 600, 0)
    pods = [launcher(**statuses.pulling("ImagePullBackOff", "not found"))]
    assert judged(judge, pods) is None
    assert judge.next_time() == IMAGE_SECONDS
    assert judged(judge, [launcher(**statuses.CREATING)], now=5) is None
    assert judged(judge, pods, now=6) is None
    assert judged(judge, pods, now=5 + IMAGE_SECONDS) is None
    assert judged(judge, pods, now=6 + IMAGE_SECONDS) == JobOutcome(
        1, ("pod l cannot start: ImagePullBackOff: image app:1: not found",)
    )
    pods = [launcher(**statuses.pulling("InvalidImageName", "bad"))]
    assert judged(Judge("train", 1, 600, 0), pods).code == 1


def test_too_few_nodes():
    judge = Judge("train", 2, 60, 0)
    pods = [launcher(**statuses.CREATING), pod("w", **statuses.UNSCHEDULABLE)]
    assert judged(judge, pods, now=59) is None
    assert judge.next_time() == 60
    outcome = judged(judge, pods, now=60, events=[statuses.QUOTA])
    assert outcome.code == 1
    assert outcome.lines[0].startswith("waited 60 s (--start-timeout): 0 of 2 pods have started; pod w: Unschedulable")
    assert outcome.lines[0].endswith(statuses.QUOTA["message"])


def test_a_pod_evicted_while_it_starts():
    judge = Judge("train", 2, 600, 0)
    pods = [launcher(**statuses.RUNNING), pod("w", **statuses.EVICTED)]
    jobs = {"launcher": {}, "worker": statuses.FAILED_JOB}
    assert judged(judge, pods, jobs=jobs) is None
    assert judged(judge, pods, now=LAST_SECONDS, jobs=jobs) == JobOutcome(
        1, ("pod w on node-a has failed: Evicted: The node was low on resource: memory.",)
    )


def test_pending_pods_do_not_end_a_started_job():
    judge = Judge("train", 1, 60, 0)
    waits = pod("w1", index="1", **statuses.UNSCHEDULABLE)
    pulls = pod("w2", index="2", **statuses.pulling("ImagePullBackOff", "x"))
    first = pod("w0", **statuses.RUNNING)
    assert judged(judge, [launcher(**statuses.CREATING), first, waits, pulls]) is None
    assert judge.next_time() == IMAGE_SECONDS
    assert judged(judge, [launcher(**statuses.CREATING), first, waits, pulls], now=IMAGE_SECONDS) is None
    assert judge.next_time() == 60  # enough pods run, so the image is not checked again
    assert judged(judge, [launcher(**statuses.RUNNING), first, waits, pulls], now=59) is None
    assert judge.next_time() is None
    assert judged(judge, [launcher(**statuses.RUNNING), waits, pulls], now=1000) is None
    as_many_as_expected = Judge("train", 1, 60, 0)
    for now in (0, IMAGE_SECONDS):
        assert judged(as_many_as_expected, [launcher(**statuses.CREATING), first, pulls], now=now) is None


def test_an_image_failure_that_leaves_too_few_pods():
    judge = Judge("train", 2, 60, 0)
    pods = [launcher(**statuses.RUNNING), pod("w0", **statuses.RUNNING)]
    pods.append(pod("w1", index="1", **statuses.pulling("ErrImagePull", "x")))
    assert judged(judge, pods) is None
    assert judged(judge, pods, now=IMAGE_SECONDS).lines == ("pod w1 cannot start: ErrImagePull: image app:1: x",)
