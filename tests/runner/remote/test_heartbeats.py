"""Heartbeats between the launcher and other hosts."""

from horovod.runner.remote.heartbeats import STUCK_SECONDS, Heartbeats


def test_heartbeats_are_due_four_times_per_timeout():
    beats = Heartbeats(8.0, 100.0)
    assert beats.is_due(100.0)
    assert beats.next_heartbeat == 102.0
    assert not beats.is_due(101.9)
    assert beats.is_due(102.0)


def test_a_silent_host_is_suspect_and_then_lost():
    beats = Heartbeats(8.0, 100.0)
    last_heard = {"a": 100.0, "b": 103.0}
    assert (beats.suspects(104.0, last_heard), beats.lost(104.0, last_heard)) == ([], {})
    assert (beats.suspects(105.0, last_heard), beats.lost(105.0, last_heard)) == (["a"], {})
    assert (beats.suspects(108.0, last_heard), beats.lost(108.0, last_heard)) == (["a", "b"], {"a": 8.0})


def test_a_delay_of_the_launcher_does_not_affect_hosts():
    beats = Heartbeats(8.0, 100.0)
    assert not beats.was_deaf(103.0, listening=True)
    assert beats.was_deaf(107.5, listening=True)
    assert not beats.was_deaf(108.0, listening=True)
    assert beats.was_deaf(108.0, listening=False), "the reader of our output is slow, so nobody is listened to"
    short = Heartbeats(0.5, 100.0)
    assert short.is_due(100.0)
    assert (short.suspects(100.3, {"a": 100.0}), short.lost(100.5, {"a": 100.0})) == (["a"], {"a": 0.5})
    assert not short.was_deaf(100.0 + STUCK_SECONDS, listening=True)


def test_without_heartbeats_no_host_is_lost():
    beats = Heartbeats(0.0, 100.0)
    assert (beats.is_due(200.0), beats.lost(1e9, {"a": 0.0}), beats.suspects(1e9, {"a": 0.0})) == (False, {}, [])
