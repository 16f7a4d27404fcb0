"""Exact step metrics from the ranks' measurements."""

import pytest

from horovod.common.telemetry.steps import (
    SAMPLE,
    WARM_UP,
    Clock,
    CombinedSteps,
    Lateness,
    OwnSteps,
    Pings,
    Step,
    StepSample,
    Sums,
    figures,
    last_arrivals,
    stride,
)

MS = 1_000_000


def step(number, time=50 * MS, **more):
    values = dict.fromkeys(Step._fields, 0) | {"number": number, "time": time, "end": number * time} | more
    return Step(**values)


def steps(count, start=WARM_UP, **more):
    return [step(number, **more) for number in range(start, start + count)]


def test_figures_are_means_of_measurements():
    own = OwnSteps()
    own.add(steps(4, data=10 * MS, blocked=5 * MS, collectives=8 * MS, hidden=4 * MS, bytes=100, moved=150))
    found = figures(own.sums, link=37500.0)
    assert found["steps"] == 4
    for name, ms in (("step", 50), ("data", 10), ("compute", 35), ("exposed", 5), ("hidden", 4), ("collective", 8)):
        assert found[f"{name}_seconds"] == pytest.approx(ms * 1e-3), name
    assert found["efficiency"] == pytest.approx(0.9)
    assert found["bytes"] == 100
    assert found["bandwidth"] == pytest.approx(150 / 8e-3)
    assert found["link_share"] == pytest.approx(0.5)
    assert figures(Sums())["steps"] == 0


def test_first_steps_and_pauses_are_reported_separately():
    own = OwnSteps()
    own.add(steps(WARM_UP, start=0, time=900 * MS))
    assert (own.completed, own.sums.steps) == (WARM_UP, 0)
    own.add(steps(20))
    own.add([step(WARM_UP + 20, time=30_000 * MS), step(WARM_UP + 21, time=400 * MS)])
    assert own.completed == WARM_UP + 22
    assert (own.sums.steps, own.sums.pauses, own.sums.paused) == (21, 1, 30_000 * MS)


@pytest.mark.parametrize(("count", "every"), [(1, 1), (SAMPLE, 1), (SAMPLE + 1, 2), (10 * SAMPLE, 16)])
def test_steps_per_note(count, every):
    assert stride(count) == every
    notes = OwnSteps().add(steps(count, start=1000))
    assert len(notes) <= SAMPLE
    assert all(one.number % every == 0 for one in notes)


def sampled(blocked=(), arrivals=None, time=50):
    arrivals = arrivals or [0] * len(blocked)
    blocked = blocked or [-1] * len(arrivals)
    pairs = enumerate(zip(blocked, arrivals, strict=True))
    return {r: StepSample(9, time * MS, b * MS if b >= 0 else -1, a * MS) for r, (b, a) in pairs}


@pytest.mark.parametrize(
    ("blocked", "expected"),
    [
        ([10, 10, 2, 11], (2, 8 * MS)),
        ([10, 2, 2, 11], (1, 8 * MS)),  # the first of two equally late ranks
        ([10, 10, 10, 10], None),
        ([10.0, 9.2], None),  # less than 2% of a step
        ([10.0, 8.9], (1, 1.1 * MS)),
    ],
)
def test_the_last_rank_waits_least(blocked, expected):
    hosts = dict.fromkeys(range(4), 0)
    found = last_arrivals(sampled(blocked), hosts, {})
    assert found == (None if expected is None else (expected[0], int(expected[1])))


def test_arrival_order_counts_within_clock_precision():
    late = sampled(arrivals=[100, 101, 130])
    assert last_arrivals(late, {0: 0, 1: 0, 2: 0}, {}) == (2, int(29.5 * MS))
    apart = {0: 0, 1: 0, 2: 1}
    assert last_arrivals(late, apart, {}) is None
    assert last_arrivals(late, apart, {0: Clock(), 1: Clock(29 * MS, MS // 10)}) is None  # 29 ms ahead: it was not late
    assert last_arrivals(late, apart, {0: Clock(), 1: Clock(20 * MS, MS)}) == (2, int(9.5 * MS))
    assert last_arrivals(late, apart, {0: Clock(), 1: Clock(20 * MS, 15 * MS)}) is None  # it may be clock skew
    assert last_arrivals(sampled(arrivals=[100, 0, 130]), {0: 0, 1: 0, 2: 0}, {}) is None


def test_clock_precision_is_that_of_the_fastest_recent_reply():
    pings = Pings()
    assert pings.add(1000, 5200, 1400) == Clock(4000, 200)
    assert pings.add(2000, 6060, 2100) == Clock(4010, 50)
    assert pings.add(3000, 7900, 5000) == Clock(4010, 50)
    for _ in range(16):
        known = pings.add(9000, 14000, 9800)
    assert known == Clock(4600, 400)


def test_rank_0_merges_notes_in_any_order_and_with_gaps():
    together = CombinedSteps(2)
    owns = [OwnSteps(), OwnSteps()]
    notes = {}
    for rank, own in enumerate(owns):
        for batch in range(3):
            # Rank 1 is late in the first two batches.
            late = 20 if rank == 0 and batch < 2 else 0
            added = own.add(steps(10, start=WARM_UP + 10 * batch, blocked=late * MS))
            notes[rank, batch] = (rank, 0, own.completed, Sums(*own.sums.values()), added)
    for key in ((1, 0), (0, 0), (0, 1), (1, 1), (0, 2)):
        together.add(*notes[key])
    assert together.late.compared == 20
    assert together.late.worst() == 1
    assert together.late.of(1) == {"share": 1.0, "seconds": pytest.approx(0.02)}
    together.add(*notes[1, 2])
    assert together.late.of(1)["share"] == pytest.approx(2 / 3)
    assert together.late_recently().of(1)["share"] == pytest.approx(2 / 3)
    assert together.late.of(0) == {"share": 0.0, "seconds": 0.0}
    assert [together.sums[rank].steps for rank in (0, 1)] == [30, 30]
    assert together.lately[0].steps == 10


@pytest.mark.parametrize(
    ("size", "late", "worst"),
    [
        (2, [0] * 10, 0),
        (2, [0] * 9, None),  # as likely as by chance
        (2, [0] * 60 + [1] * 40, None),
        (2, [0] * 66 + [1] * 34, 0),
        (4, [2] * 40 + [0, 1, 3] * 20, 2),
        (4, [2] * 30 + [0, 1, 3] * 24, None),
        (2, [], None),
    ],
)
def test_ranks_that_come_last_by_chance_are_not_named(size, late, worst):
    lateness = Lateness(size)
    for rank in late:
        lateness.add((rank, MS))
    for _ in range(1000):
        lateness.add(None)
    assert lateness.worst() == worst
