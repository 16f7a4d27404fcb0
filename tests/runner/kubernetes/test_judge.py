"""When a job is over, judged by API objects and the clock."""

from horovod.runner.kubernetes import pods
from horovod.runner.kubernetes.judge import IMAGE_SECONDS, LAST_SECONDS, Judge, Outcome
from tests.runner.kubernetes import statuses
from tests.runner.kubernetes.statuses import pod

JOBS = {"launcher": {}, "worker": {}}


def judged(judge, given, now=0.0, jobs=JOBS, events=(), log_read=False):
    return judge.outcome([pods.view(each) for each in given], jobs, events, now, log_read)


def launcher(**status):
    return pod("l", "launcher", **status)


def test_the_exit_code_is_the_launchers_once_all_its_output_is_read():
    judge = Judge("train", 1, 60, 0)
    assert judged(judge, [launcher(**statuses.RUNNING), pod("w", **statuses.RUNNING)]) is None
    assert judge.next_time() is None
    given = [launcher(**statuses.ended(7))]
    assert judged(judge, given) is None
    assert judge.next_time() == LAST_SECONDS
    assert judged(judge, given, log_read=True) == Outcome(7)
    assert judged(judge, given, now=LAST_SECONDS) == Outcome(7)
    assert judged(judge, [launcher(**statuses.ended(0))], log_read=True) == Outcome(0)


def test_pods_that_were_killed_are_told_of_beside_what_the_launcher_said():
    given = [launcher(**statuses.ended(137)), pod("w", **statuses.ended(137, "OOMKilled"))]
    assert judged(Judge("train", 1, 60, 0), given, log_read=True) == Outcome(
        137, ("pod w on node-a has failed: OOMKilled: --memory is too small",)
    )


def test_a_launcher_that_was_evicted_could_say_nothing():
    assert judged(Judge("train", 1, 60, 0), [launcher(**statuses.EVICTED)], log_read=True) == Outcome(
        1, ("the launcher's pod l has failed: Evicted: The node was low on resource: memory.",)
    )


def test_a_launcher_whose_pod_is_gone():
    jobs = {"launcher": statuses.FAILED_JOB, "worker": {}}
    assert judged(Judge("train", 1, 60, 0), [], jobs=jobs) == Outcome(
        1, ("the launcher's pod is gone: BackoffLimitExceeded",)
    )
    assert judged(Judge("train", 1, 60, 0), [], jobs={}) == Outcome(1, ("job train has been deleted",))


def test_images_that_cannot_be_pulled():
    judge = Judge("train", 1, 600, 0)
    given = [launcher(**statuses.pulling("ImagePullBackOff", "not found"))]
    assert judged(judge, given) is None
    assert judge.next_time() == IMAGE_SECONDS
    assert judged(judge, [launcher(**statuses.CREATING)], now=5) is None
    assert judged(judge, given, now=6) is None
    assert judged(judge, given, now=5 + IMAGE_SECONDS) is None
    assert judged(judge, given, now=6 + IMAGE_SECONDS) == Outcome(
        1, ("pod l cannot start: ImagePullBackOff: image app:1: not found",)
    )
    given = [launcher(**statuses.pulling("InvalidImageName", "bad"))]
    assert judged(Judge("train", 1, 600, 0), given).code == 1


def test_too_few_nodes():
    judge = Judge("train", 2, 60, 0)
    given = [launcher(**statuses.CREATING), pod("w", **statuses.UNSCHEDULABLE)]
    assert judged(judge, given, now=59) is None
    assert judge.next_time() == 60
    outcome = judged(judge, given, now=60, events=[statuses.QUOTA])
    assert outcome.code == 1
    assert outcome.lines[0].startswith("waited 60 s (--start-timeout): 0 of 2 pods have started; pod w: Unschedulable")
    assert outcome.lines[0].endswith(statuses.QUOTA["message"])


def test_a_pod_evicted_while_it_starts():
    judge = Judge("train", 2, 600, 0)
    given = [launcher(**statuses.RUNNING), pod("w", **statuses.EVICTED)]
    jobs = {"launcher": {}, "worker": statuses.FAILED_JOB}
    assert judged(judge, given, jobs=jobs) is None
    assert judged(judge, given, now=LAST_SECONDS, jobs=jobs) == Outcome(
        1, ("pod w on node-a has failed: Evicted: The node was low on resource: memory.",)
    )


def test_what_waits_once_the_job_has_begun_does_not_end_it():
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


def test_an_image_without_which_too_few_pods_are_left():
    judge = Judge("train", 2, 60, 0)
    given = [launcher(**statuses.RUNNING), pod("w0", **statuses.RUNNING)]
    given.append(pod("w1", index="1", **statuses.pulling("ErrImagePull", "x")))
    assert judged(judge, given) is None
    assert judged(judge, given, now=IMAGE_SECONDS).lines == ("pod w1 cannot start: ErrImagePull: image app:1: x",)
