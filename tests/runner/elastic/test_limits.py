"""Limits of elastic jobs: excluded hosts, and admission of new workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod import __version__
from horovod.common.contract.membership import Facts, encode
from horovod.runner.elastic.actions import JOIN_SECONDS
from horovod.runner.elastic.limits import Admission, AdmissionResult, Blacklist, Newcomers, check_range
from horovod.runner.elastic.workers import Worker


@given(low=st.integers(1, 60), more=st.integers(0, 3000), seed=st.integers(0, 1000))
def test_the_first_delay_has_a_jitter_and_each_further_one_is_twice_as_long(low, more, seed):
    high = min(low + more, 3600)
    known = Blacklist((low, high), seed)
    now, last = 0.0, 0.0
    for count in range(8):
        delay = known.failed("a", now)
        if count == 0:
            assert min(low, high) <= delay <= min(2 * low, high)
        else:
            assert delay == pytest.approx(min(2 * last, high))
        assert known.bars("a", now)
        assert known.failed("a", now + delay / 2) == pytest.approx(delay / 2), "it is away already"
        assert known.next_return(now) == pytest.approx(now + delay)
        now += delay
        assert not known.bars("a", now)
        last = delay


@pytest.mark.parametrize("wrong", [(0, 10), (1, 3601), (20, 10), (5,), "ab"])
def test_ranges_that_are_not_accepted(wrong):
    with pytest.raises(ValueError, match=r"cooldown range must be two numbers of seconds .*, got "):
        check_range(wrong)
    with pytest.raises(ValueError, match="from 1 to 3600"):
        Blacklist(wrong)


NEW, OLD = Worker(1, "a", "a"), Worker(0, "a", "a", survivor=True)


def test_ready_workers_wait_for_starting_ones_with_a_limit():
    admission = Admission()
    assert admission.next_time(0.0) is None
    assert admission.may_join([NEW], False, 1.0), "no worker is starting"
    assert not admission.may_join([NEW, OLD], True, 2.0)
    assert admission.next_time(2.0) == 1.0 + JOIN_SECONDS
    assert not admission.may_join([NEW], True, 0.9 + JOIN_SECONDS)
    admission.postpone(10.0)
    assert not admission.may_join([NEW], True, 1.0 + JOIN_SECONDS)
    assert admission.next_time(1.0 + JOIN_SECONDS) == 11.0 + JOIN_SECONDS
    assert admission.may_join([NEW], True, 11.0 + JOIN_SECONDS)
    assert admission.next_time(11.0 + JOIN_SECONDS) is None


def test_the_first_epoch_may_wait_longer_for_those_that_start():
    admission = Admission(gather=60.0)
    assert not admission.may_join([NEW], True, 1.0)
    assert admission.next_time(1.0) == 61.0
    assert not admission.may_join([NEW], True, 60.9)
    assert admission.may_join([NEW], False, 60.9), "all are there"
    assert admission.may_join([NEW], True, 61.0)
    admission.formed()
    assert not admission.may_join([OLD], True, 70.0)
    assert not admission.may_join([NEW], True, 71.0)
    assert admission.next_time(71.0) == 71.0 + JOIN_SECONDS


JOB = Facts("1.2.0", "3.11", "train.py", "aa")


def judged(same_code: bool = True, **other: str) -> AdmissionResult:
    """Return the result for a worker that differs in this from the job's first worker."""
    newcomers = Newcomers(same_code, JOB.version)
    assert newcomers.judge(encode(JOB)) == AdmissionResult()
    facts = {"version": JOB.version, "python": JOB.python, "program": JOB.program, "code": JOB.code, **other}
    return newcomers.judge(encode(Facts(**facts)))


def test_variable_that_requires_equal_programs():
    for environ, refused in (({}, True), ({"HOROVOD_ELASTIC_CODE": "any"}, False)):
        newcomers = Newcomers.from_environ(environ)
        first, other = (Facts(__version__, "3.11", "train.py", code) for code in ("aa", "bb"))
        assert newcomers.judge(encode(first)) == AdmissionResult()
        assert bool(newcomers.judge(encode(other)).refusal) is refused


def test_other_versions_are_refused_naming_both():
    assert "has horovod 1.1.0, but the launcher has horovod 1.2.0" in judged(version="1.1.0").refusal
    assert "has Python 3.12, but the job's workers have Python 3.11" in judged(python="3.12").refusal


def test_another_program_is_refused_or_warned_about_as_configured():
    text = "its copy of train.py differs from the one that the job runs"
    way_out = "; install the same on all hosts, or let it in by HOROVOD_ELASTIC_CODE=any"
    assert judged(code="bb") == AdmissionResult(text + way_out)
    assert judged(False, code="bb") == AdmissionResult(warning=f"{text}, which HOROVOD_ELASTIC_CODE=any allows")
    assert "its program is other.py, but the job's is train.py" in judged(program="other.py", code="bb").refusal
    assert "is no file" in judged(program="", code="").refusal
