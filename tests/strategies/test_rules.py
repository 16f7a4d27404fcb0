"""Update rules, schedules, layouts, graphs and progress: identities that hold for every number of ranks."""

import types

import numpy as np
import pytest

from horovod.strategies.rules import (
    AVERAGING,
    GRAPHS,
    OuterSGD,
    Progress,
    Schedule,
    blend,
    check_targets,
    elastic_move,
    pushed,
    segments,
    slices,
)
from horovod.strategies.serving import Server, Store, _Loop

SIZES = range(1, 10)
RANDOM = np.random.default_rng(0)


def test_outer_rate_1_without_momentum_is_averaging():
    shared, local = RANDOM.normal(size=7), RANDOM.normal(size=(3, 7))
    for rule in (AVERAGING, OuterSGD(1.0, 0.0)):
        result = shared.copy()
        rule.update(result, np.mean(shared - local, axis=0), None)
        np.testing.assert_allclose(result, local.mean(axis=0))


@pytest.mark.parametrize("fragments", [1, 2, 5])
def test_each_fragment_is_due_once_in_a_round(fragments):
    schedule = Schedule(every=10, fragments=fragments, synchronous_steps=3)
    assert [schedule.due(step) for step in (1, 2, 3)] == [list(range(fragments))] * 3
    for begin in (3, 13):
        due = [f for step in range(begin + 1, begin + 11) for f in schedule.due(step)]
        assert due == list(range(fragments))
        assert {schedule.begin_of_round(step) for step in range(begin, begin + 10)} == {begin}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"every": 0}, "every"),
        ({"every": 2.5}, "every"),
        ({"every": 10, "fragments": 3}, "multiple of fragments"),
        ({"every": 10, "fragments": 5, "overlap": 2}, "overlap must be below .* = 2 steps, got 2"),
        ({"every": 10, "synchronous_steps": -1}, "synchronous_steps"),
    ],
)
def test_impossible_schedules(arguments, named):
    with pytest.raises(ValueError, match=named):
        Schedule(**arguments)


def test_impossible_outer_optimizers():
    for arguments in ({"lr": 0.0}, {"lr": float("nan")}, {"momentum": 1.0}, {"momentum": -0.1}):
        with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
            OuterSGD(**arguments)


def test_each_element_is_in_one_segment_of_one_part():
    for _ in range(200):
        sizes = RANDOM.integers(0, 9, size=RANDOM.integers(1, 8)).tolist()
        parts = int(RANDOM.integers(1, 7))
        seen = [np.zeros(size, int) for size in sizes]
        for start, stop in slices(sum(sizes), parts):
            filled = np.zeros(stop - start, int)
            for index, low, high, offset in segments(sizes, start, stop):
                seen[index][low:high] += 1
                filled[offset : offset + high - low] += 1
            assert (filled == 1).all()
        assert all((one == 1).all() for one in seen)
        lengths = [stop - start for start, stop in slices(sum(sizes), parts)]
        assert max(lengths) - min(lengths) <= 1


def mixed(graph, size, rounds, push_sum=True):
    """Return (x, w) of all ranks after some rounds from the unit vectors."""
    x, w = np.eye(size), np.ones(size)
    for number in range(rounds):
        targets = check_targets(graph(size, number), size, push_sum)
        kept = [(pushed(x[r], len(targets[r])), pushed(w[r], len(targets[r]))) for r in range(size)]
        x, w = np.array([k[0] for k in kept]), np.array([k[1] for k in kept])
        for rank in range(size):
            for target in targets[rank]:
                x[target] += kept[rank][0]
                w[target] += kept[rank][1]
    return x, w


def star(size, number):
    return [list(range(1, size)), *([0] for _ in range(size - 1))]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("graph", [*GRAPHS.values(), star])
def test_push_sum_conserves_sums_and_reaches_the_average(graph, size):
    x, w = mixed(graph, size, 7)
    np.testing.assert_allclose(x.sum(axis=0), 1)
    np.testing.assert_allclose(w.sum(), size)
    x, w = mixed(graph, size, 150)
    np.testing.assert_allclose(x / w[:, None], 1 / size, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_with_names_need_no_push_sum(name, size):
    _, w = mixed(GRAPHS[name], size, 9, push_sum=False)
    assert (w == 1).all()


def test_an_unequal_graph_needs_push_sum():
    with pytest.raises(ValueError, match="push_sum must be True"):
        check_targets(star(3, 0), 3, push_sum=False)


@pytest.mark.parametrize("targets", [[[1]], [[1], [1]], [[1, 1], [0]], [[2], [0]]])
def test_invalid_targets(targets):
    with pytest.raises(ValueError, match="distinct other ranks"):
        check_targets(targets, 2, push_sum=True)


@pytest.mark.parametrize("size", range(2, 10))
def test_every_pair_meets_once_in_a_tournament(size):
    rounds = size - 1 + size % 2
    met = []
    for number in range(rounds):
        targets = GRAPHS["pairs"](size, number)
        assert all(targets[targets[r][0]] == [r] for r in range(size) if targets[r])
        met += [(r, targets[r][0]) for r in range(size) if targets[r] and r < targets[r][0]]
    assert sorted(met) == [(a, b) for a in range(size) for b in range(a + 1, size)]


def test_elastic_moves_conserve_the_sum():
    center, local = RANDOM.normal(size=5), RANDOM.normal(size=(3, 5))
    total = center + local.sum(axis=0)
    for worker in (0, 2, 1, 1, 0):
        move = elastic_move(local[worker], center, 0.3)
        local[worker] -= move
        center += move
    np.testing.assert_allclose(center + local.sum(axis=0), total)


def test_blend():
    shared, local = np.zeros(2), np.ones(2)
    assert blend(shared, local, 0) is shared
    np.testing.assert_array_equal(blend(shared, local, 0.25), 0.25)


def descend(values, gradient, options):
    values -= options[0] * gradient


def server(mode, workers, staleness=None, damping=False):
    return Server(Store(np.zeros(2), descend), mode, workers, staleness, 0.5, damping)


def test_a_synchronous_server_waits_for_all_workers_and_averages():
    one = server("sync", [0, 1])
    one.receive(0, np.array([2.0, 0.0]), [1.0])
    assert not one.ready(0)
    one.receive(1, np.array([0.0, 4.0]), [1.0])
    assert one.ready(0)
    assert one.ready(1)
    np.testing.assert_array_equal(one.reply(0), [-1, -2])
    assert one.progress.histogram == {0: 2}


def test_an_elastic_server_conserves_the_sum():
    one, local = server("easgd", [0, 1]), np.array([[1.0, 2.0], [3.0, -5.0]])
    total = one.store.values + local.sum(axis=0)
    for worker in (0, 1, 1, 0):
        one.receive(worker, local[worker], [])
        local[worker] -= one.reply(worker)
    np.testing.assert_allclose(one.store.values + local.sum(axis=0), total)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_staleness_is_bounded_and_the_slowest_worker_never_waits(bound):
    progress = Progress([0, 1, 2], bound)
    steps = dict.fromkeys(range(3), 0)
    for _ in range(300):
        free = [w for w in steps if progress.may_continue(w)]
        assert set(progress.slowest()) <= set(free)
        worker = int(RANDOM.choice(free))
        progress.updated(worker)
        progress.read(worker)
        steps[worker] += 1
        assert max(steps.values()) - min(steps.values()) <= bound + 1
    assert sum(progress.histogram.values()) == 300
    progress.leave(progress.slowest()[0])
    assert len(progress.active) == 2


@pytest.mark.parametrize(("mode", "waiting", "missing"), [("sync", 0, [1]), ("async", 0, [1])])
def test_a_wait_for_a_slow_worker_has_a_deadline(mode, waiting, missing):
    one = server(mode, [0, 1], staleness=0)
    one.receive(waiting, np.ones(2), [1.0])
    loop = _Loop(types.SimpleNamespace(timeout=0.02), one, me=2)
    with loop._changed, pytest.raises(TimeoutError, match=rf"rank 0 has waited 0\.02 s for a step of rank \{missing}"):
        loop._wait(waiting)
