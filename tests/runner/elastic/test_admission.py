"""When new workers are admitted, and when members are notified of them."""

from horovod.runner.elastic.actions import TOGETHER
from horovod.runner.elastic.admission import Admission
from horovod.runner.elastic.workers import Worker

NEW, OLD = Worker(1, "a", "a"), Worker(0, "a", "a", survivor=True)


def test_who_is_ready_waits_for_others_that_start_but_not_for_ever():
    admission = Admission()
    assert admission.next_time(0.0) is None
    assert admission.together([NEW], False, 1.0), "there is nobody to wait for"
    assert not admission.together([NEW, OLD], True, 2.0)
    assert admission.next_time(2.0) == 1.0 + TOGETHER
    assert not admission.together([NEW], True, 0.9 + TOGETHER)
    admission.postpone(10.0)
    assert not admission.together([NEW], True, 1.0 + TOGETHER)
    assert admission.next_time(1.0 + TOGETHER) == 11.0 + TOGETHER
    assert admission.together([NEW], True, 11.0 + TOGETHER)
    assert admission.next_time(11.0 + TOGETHER) is None


def test_the_first_epoch_may_wait_longer_for_those_that_start():
    admission = Admission(gather=60.0)
    assert not admission.together([NEW], True, 1.0)
    assert admission.next_time(1.0) == 61.0
    assert not admission.together([NEW], True, 60.9)
    assert admission.together([NEW], False, 60.9), "all are there"
    assert admission.together([NEW], True, 61.0)
    admission.formed()
    assert not admission.together([OLD], True, 70.0)
    assert not admission.together([NEW], True, 71.0)
    assert admission.next_time(71.0) == 71.0 + TOGETHER
