"""When an attempt begins, is stopped and is given up: a pure function of events."""

import signal

from horovod.runner.job.policy import (
    AGENT_GRACE,
    FINAL_OUTPUT_SECONDS,
    SETTLE,
    TERM_GRACE,
    USER_GRACE,
    Late,
    Launch,
    Phase,
    Policy,
    Stop,
)


def running(now: float = 0.0) -> Policy:
    policy = Policy(now, 30.0)
    assert policy.connected(now) == [Launch()]
    policy.started()
    assert (policy.phase, policy.next_time()) == (Phase.RUNNING, None)
    return policy


def test_states_from_first_connection_to_running():
    policy = Policy(100.0, 30.0)
    assert (policy.phase, policy.next_time()) == (Phase.CONNECTING, 130.0)
    assert policy.tick(129.0) == []
    assert policy.connected(120.0) == [Launch()]
    assert policy.connected(121.0) == [], "once"
    assert (policy.phase, policy.next_time()) == (Phase.STARTING, 150.0), "the start has as long again"
    policy.started()
    assert (policy.phase, policy.next_time()) == (Phase.RUNNING, None)
    assert policy.tick(1e9) == []


def test_start_timeout_in_the_policy():
    early = Policy(0.0, 30.0)
    assert early.tick(30.0) == [Late(), Stop(0)]
    assert early.tick(31.0) == [], "said once"
    assert early.connected(32.0) == [], "too late"
    late = Policy(0.0, 30.0)
    late.connected(20.0)
    assert late.tick(49.0) == []
    assert late.tick(50.0) == [Late(), Stop(0)]


def test_other_ranks_may_explain_after_the_first_failure():
    policy = running()
    policy.failed(10.0)
    policy.failed(11.0)
    assert (policy.phase, policy.next_time()) == (Phase.SETTLING, 10.0 + SETTLE)
    assert policy.tick(10.0 + SETTLE - 0.1) == []
    # A possibly lost host would explain all failures: wait until that is known.
    assert policy.tick(10.0 + SETTLE, doubtful=True) == []
    assert policy.next_time() == 10.0 + SETTLE * 1.25
    assert policy.tick(10.0 + SETTLE * 1.25) == [Stop(TERM_GRACE)]
    assert policy.stopping
    policy.failed(20.0)
    assert policy.stopping, "what ends now ends because of us"


def test_unstartable_ranks_fail_before_their_host_has_started():
    policy = Policy(0.0, 30.0)
    policy.connected(0.0)
    policy.failed(1.0)
    policy.started()
    assert (policy.phase, policy.next_time()) == (Phase.SETTLING, 1.0 + SETTLE)


def test_errors_stop_the_job_at_once():
    assert Policy(0.0, 30.0).trouble(1.0) == [Stop(0)], "nothing runs yet"
    policy = running()
    assert policy.trouble(1.0) == [Stop(TERM_GRACE)]
    assert policy.next_time() == 1.0 + TERM_GRACE + AGENT_GRACE
    policy.trouble(3.0)
    assert policy.next_time() == 1.0 + TERM_GRACE + AGENT_GRACE, "more trouble gives no more time"
    assert not policy.gives_up(1.0 + TERM_GRACE + AGENT_GRACE - 0.1)
    assert policy.gives_up(1.0 + TERM_GRACE + AGENT_GRACE)


def test_a_second_interrupt_shortens_the_grace():
    policy = running()
    assert policy.interrupted(1.0) == [Stop(USER_GRACE, signal.SIGINT)]
    assert policy.next_time() == 1.0 + USER_GRACE + TERM_GRACE + AGENT_GRACE
    assert policy.interrupted(2.0) == [Stop(0)]
    assert policy.next_time() == 2.0 + AGENT_GRACE


def test_errors_do_not_shorten_the_grace_of_a_user_stop():
    policy = running()
    policy.interrupted(1.0)
    until = policy.next_time()
    assert policy.trouble(2.0) == []
    assert policy.next_time() == until


def test_limits_are_restored_at_the_end_except_for_interrupted_readers():
    policy = Policy(0.0, 30.0)
    policy.connected(0.0)
    policy.ended(1.0)
    assert (policy.phase, policy.next_time(), policy.tick(31.0)) == (Phase.ENDED, None, [])
    policy = running()
    policy.reader_is_slow(0.5)
    policy.trouble(1.0)
    policy.reader_is_slow(100.0)
    assert policy.next_time() == 100.0 + AGENT_GRACE
    policy.ended(2.0)
    assert (policy.phase, policy.next_time()) == (Phase.ENDED, None)
    policy.interrupted(100.0)
    for now in (100.0, 100.5):
        policy.ended(now)
        assert policy.next_time() == 100.0 + FINAL_OUTPUT_SECONDS
