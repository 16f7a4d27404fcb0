"""How long a host gets no new workers after a failure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.runner.elastic.limits import Blacklist, check_range


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
