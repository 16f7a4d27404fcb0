"""The syntax of faults, and its meaning."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.chaos import Event, Kind, plan
from horovod.chaos.grammar import RANDOM_KINDS, Seeded

TEXT = (
    "kill rank=2 step=50; stop rank=1 step=80 for=3s; slow link=0-2 by=5ms; cut host=h2 step=90; "
    "preempt rank=0 step=120"
)


def test_parsed_plan():
    schedule = plan(TEXT)
    assert schedule.events == (
        Event(Kind.KILL, rank=2, step=50),
        Event(Kind.STOP, rank=1, step=80, lasts=3.0),
        Event(Kind.SLOW, link=(0, 2), by=0.005),
        Event(Kind.CUT, host="h2", step=90),
        Event(Kind.PREEMPT, rank=0, step=120),
    )
    assert schedule == plan(TEXT + ";")
    assert "; ".join(map(str, schedule.events)) == TEXT
    assert schedule
    assert not plan("")
    assert not plan(" ; ")


def test_faults_that_a_rank_executes():
    schedule = plan("kill rank=1 step=9; exit code=3 rank=1 step=2; raise rank=0 step=1; kill rank=1 after=5s")
    assert [str(event) for event in schedule.of_rank(1)] == ["exit rank=1 code=3 step=2", "kill rank=1 step=9"]
    assert schedule.of_rank(2) == []


def test_random_events_depend_only_on_the_seed():
    schedule = plan("seed=7 mtbf=30s")
    assert schedule.seeded == (Seeded(7, 30.0),)
    first = list(itertools.islice(schedule.by_time(), 200))
    assert first == list(itertools.islice(plan("mtbf=30s  seed=7").by_time(), 200))
    assert first != list(itertools.islice(plan("seed=8 mtbf=30s").by_time(), 200))
    times = [event.after for event in first]
    assert times == sorted(times)
    assert 20 < times[-1] / len(times) < 45, "30 s between two, in the mean"
    assert {event.kind for event in first} == set(RANDOM_KINDS)
    assert {event.meets(4) for event in first} == {0, 1, 2, 3}
    assert Event(Kind.KILL, pick=1.0).meets(4) == 3
    assert str(first[0]).startswith(f"{first[0].kind.value} pick=0.")
    assert [str(event) for event in first[:4]] == [
        "kill pick=0.650934 after=11.7394s",
        "raise pick=0.057999 after=34.7679s",
        "raise pick=0.069855 after=35.9144s",
        "preempt pick=0.123802 after=52.4909s",
    ], "the same seed gives the same events, in later versions too"


def test_random_and_explicit_events_are_ordered_together():
    schedule = plan(
        "seed=1 mtbf=10s until=1m kinds=kill; kill rank=0 after=5s; stop rank=1 after=2s for=1s; "
        "seed=2 mtbf=20s until=30s"
    )
    events = list(schedule.by_time())
    assert [event.after for event in events] == sorted(event.after for event in events)
    assert sum(event.rank is not None for event in events) == 2
    assert max(event.after for event in events) <= 60
    assert {event.kind for event in schedule.seeded[0].events()} == {Kind.KILL}


whole = st.integers(0, 10**6)
times = st.integers(1, 10**7).map(lambda ms: ms / 1000)
when = st.one_of(whole.map(lambda n: {"step": n}), times.map(lambda s: {"after": s}))
events = st.one_of(
    st.builds(
        lambda k, r, w: Event(k, rank=r, **w), st.sampled_from([Kind.KILL, Kind.RAISE, Kind.PREEMPT]), whole, when
    ),
    st.builds(lambda r, w, s: Event(Kind.STOP, rank=r, lasts=s, **w), whole, when, times),
    st.builds(lambda r, w, c: Event(Kind.EXIT, rank=r, code=c, **w), whole, when, st.integers(1, 255)),
    st.builds(lambda a, w, b: Event(Kind.SLOW, link=(a, a + 1), by=b, **w), whole, when | st.just({}), times),
    st.builds(lambda w, s: Event(Kind.CUT, host="a-1.b", lasts=s, **w), when, st.none() | times),
)


@given(st.lists(events, max_size=5))
def test_printed_plans_are_parsed_unchanged(schedule):
    read = plan("; ".join(map(str, schedule))).events
    for one, other in zip(schedule, read, strict=True):
        assert str(one) == str(other)
        assert other.lasts == pytest.approx(one.lasts, rel=1e-5) if one.lasts else other.lasts is None
        assert (one.kind, one.rank, one.host, one.link, one.step, one.code) == (
            other.kind, other.rank, other.host, other.link, other.step, other.code
        )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "burn rank=1 step=2",
            r"must begin with one of kill, raise, exit, preempt, stop, cut, slow, seed=, got 'burn'",
        ),
        ("kill rank=1", r"step= or after= is missing"),
        ("kill step=1", r"rank= is missing"),
        ("kill rank=-1 step=1", r"rank must be an integer from 0 to \d+, got '-1'"),
        ("kill rank=1 step=1 step=2", r"step is given twice"),
        ("kill rank=1 step=1 after=2s", r"step and after are both given"),
        ("kill rank=1 step=1 for=2s", r"kill has rank, step, after, got for"),
        ("kill rank step=1", r"'rank' must have the form name=value"),
        ("kill rank= step=1", r"'rank=' must have the form name=value"),
        ("stop rank=1 step=2 for=3", r"for must be a time above 0, such as 5ms, 3s or 10m, got '3'"),
        ("stop rank=1 step=2 for=0s", r"for must be a time above 0, .*, got '0s'"),
        ("slow link=1-1 by=5ms", r"link must be two different ranks, such as 0-2, got '1-1'"),
        ("cut host=a/b step=1", r"host must be the name of a host, got 'a/b'"),
        ("exit rank=1 step=1 code=300", r"code must be an integer from 1 to 255, got '300'"),
        ("exit rank=1 step=1 code=0", r"code must be an integer from 1 to 255, got '0'"),
        ("seed=1", r"mtbf= is missing"),
        ("seed=1 mtbf=3s kinds=kill,hang", r"kinds must be of kill, stop, raise, exit, preempt, cut, slow"),
    ],
)
def test_invalid_input(text, message):
    with pytest.raises(ValueError, match=f"^chaos: '{text}': {message}"):
        plan(f"kill rank=0 step=1; {text}")
