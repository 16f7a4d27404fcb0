"""Programs whose calls ranks write, or compile, in different orders: they end, with the right values."""

import random

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

import horovod.jax as hvd  # noqa: E402

NODES = 9


def graph(seed):
    """For each node the nodes that it is made from, the same on all ranks."""
    choose = random.Random(seed)
    return [sorted(choose.sample(range(i), min(i, choose.choice((0, 0, 1, 2))))) for i in range(NODES)]


def shuffled(uses, seed):
    """The nodes in some order in which each comes after those that it is made from."""
    choose, rest, order = random.Random(seed), list(range(NODES)), []
    while rest:
        order.append(choose.choice([i for i in rest if all(j in order for j in uses[i])]))
        rest.remove(order[-1])
    return order


def expected(uses, ranks):
    values = [[None] * NODES for _ in range(ranks)]
    for i in range(NODES):
        given = [np.float64(rank + i) + sum(values[rank][j] for j in uses[i]) for rank in range(ranks)]
        for rank in range(ranks):
            values[rank][i] = np.mean(given)
    return values[0]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.heavy), 4])
def test_shuffled_programs_end(jax_pool, ranks):
    def work(seeds):
        rank, results = hvd.rank(), []
        for seed in seeds:
            uses = graph(seed)

            def program(x, uses=uses, seed=seed):
                values = {}
                for i in shuffled(uses, f"{seed}.{rank}"):
                    given = x + i + sum(values[j] for j in uses[i])
                    for _ in range(i % 3):  # something to compute in between
                        given = given @ jnp.eye(len(given))
                    values[i] = hvd.allreduce(given, name=f"node.{i}")
                return [values[i] for i in range(NODES)]

            results.append([float(one[0]) for one in jax.jit(program)(jnp.full(5, float(rank)))])
        return results

    seeds = list(range(4 if ranks == 2 else 2))
    for results in jax_pool(ranks).run(work, seeds):
        for seed, values in zip(seeds, results, strict=True):
            assert values == pytest.approx(expected(graph(seed), ranks), rel=1e-5)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.heavy)])
def test_loops_branches_and_inner_functions_among_shuffled_calls(jax_pool, ranks):
    def work():
        rank = hvd.rank()

        def loop(x):
            return jax.lax.fori_loop(0, 3, lambda i, c: hvd.allreduce(c, name="loop") + i, x)

        def branch(x):
            return jax.lax.cond(x[0] >= 0, lambda: hvd.allreduce(x, name="branch"), lambda: x)

        def inner(x):
            return jax.jit(lambda v: hvd.allreduce(v * 2, name="inner"))(x)

        results = []
        for around in (loop, branch, inner):
            for shuffle in range(3):

                def program(x, around=around, shuffle=shuffle):
                    parts = {
                        "first": lambda: hvd.allreduce(x + 1, name="first"),
                        "around": lambda: around(x),
                        "second": lambda: hvd.allreduce(hvd.allreduce(x * 3, name="third"), name="second"),
                    }
                    order = random.Random(f"{shuffle}.{rank}").sample(list(parts), len(parts))
                    if around is inner and order[-1] == "around":
                        order.reverse()  # the order of a function's use after all calls is the compiler's
                    made = {name: parts[name]() for name in order}
                    after = hvd.allreduce(made["around"] + made["second"], name="after")
                    return made["first"], made["around"], made["second"], after

                results.append([float(one[0]) for one in jax.jit(program)(jnp.full(5, float(rank)))])
        return results

    mean = (ranks - 1) / 2
    for results in jax_pool(ranks).run(work):
        for i, (first, around, second, after) in enumerate(results):
            assert first == pytest.approx(mean + 1)
            assert second == pytest.approx(3 * mean)
            assert around == pytest.approx((mean + 3, mean, 2 * mean)[i // 3])
            assert after == pytest.approx(around + second)


def test_names_used_twice_and_calls_without_names(jax_pool):
    def work():
        def program(x):
            twice = [hvd.allreduce(x + i, name="same") for i in range(3)]
            return twice, [hvd.allreduce(x * i) for i in range(3)]

        twice, unnamed = jax.jit(program)(jnp.full(3, float(hvd.rank())))
        return [float(one[0]) for one in twice], [float(one[0]) for one in unnamed]

    assert jax_pool(2).run(work) == [([0.5, 1.5, 2.5], [0.0, 0.5, 1.0])] * 2


def test_independent_calls_travel_as_one_and_dependent_ones_do_not(jax_pool):
    def work():
        def program(x):
            first = [hvd.allreduce(x + i, name=f"first.{i}") for i in range(10)]
            return hvd.allreduce(sum(first), name="second")

        text = jax.jit(program).lower(jnp.ones(3)).as_text()
        return text.count("custom_call @horovod_collective")

    assert jax_pool(2).run(work) == [2, 2]
