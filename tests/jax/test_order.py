"""Programs whose calls ranks write, or compile, in different orders: they end, with the right values."""

import random

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

import horovod.jax as hvd  # noqa: E402
from tests.jax import hlo, programs  # noqa: E402

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


def compiled_in_order(program, *args):
    """Return a compiled program, once all ranks know that they make the same collectives in the same enforced order."""
    compiled = jax.jit(program).lower(*args).compile()
    mine = hlo.order(compiled.as_text())
    everyone = hvd.allgather_object(mine)
    assert everyone == [mine] * hvd.size()
    return compiled, mine


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(i, marks=pytest.mark.heavy) for i in range(4, 40))])
def test_random_programs(jax_pool, seed):
    nodes = programs.draw(seed)
    ranks = 2 + (seed % 4 == 3)

    def work():
        def program(x, two):
            return programs.run(nodes, x, two, lambda y, name: hvd.allreduce(y, name=name), f"{seed}.{hvd.rank()}")

        x = jnp.arange(5.0) / 4 + hvd.rank()
        compiled, _ = compiled_in_order(program, x, 2)
        return [[np.asarray(one) for one in compiled(x, 2)] for _ in range(2)]

    rows = jnp.stack([jnp.arange(5.0) / 4 + rank for rank in range(ranks)])
    reference = jax.jit(lambda x, two: programs.run(nodes, x, two, programs.mean_of_rows, seed))(rows, 2)
    for rank, both in enumerate(jax_pool(ranks).run(work)):
        for values in both:
            for node, value, expected in zip(nodes, values, reference, strict=True):
                np.testing.assert_allclose(value, expected[rank], rtol=1e-4, atol=1e-5, err_msg=str(node))


# Their order, of all kinds, is in test_ordering.py.
RUN = ("fori", "call in the condition alone", "cond", "switch", "jit twice", "grad of a scan")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in RUN else pytest.mark.heavy) for kind in programs.AROUND]
)
def test_a_program_ends_with_two_of_a_kind(jax_pool, kind):
    """They are written behind the calls on one rank and before them on the other."""
    around = programs.AROUND[kind]

    def work():
        rank = hvd.rank()

        def program(x, two):
            def of(name):
                def condition(y):
                    return hvd.allreduce(y, name=f"{name}.condition")

                return around(lambda y: jnp.sin(hvd.allreduce(y, name=name)), x, two, condition)

            def calls():
                return hvd.allreduce(hvd.allreduce(x, name="first"), name="second")

            first = calls() if rank == 0 else None
            both = of("one"), of("other")
            return first if rank == 0 else calls(), *both

        x = jnp.full(3, float(rank))
        compiled, order = compiled_in_order(program, x, 2)
        return [float(one[0]) for one in compiled(x, 2)], order[:2]

    for values, first in jax_pool(2).run(work):
        assert "allreduce.first" in first[0]
        assert "allreduce.second" in first[1]
        assert values[0] == 0.5
        assert values[1] == values[2]


def test_calls_of_a_block_merge_by_what_they_depend_on(jax_pool):
    def work():
        def program(x):
            a = hvd.allreduce(x, name="a")
            b = hvd.allreduce(a, name="b")
            loop = jax.lax.fori_loop(0, 3, lambda i, y: hvd.allreduce(y, name="in"), x)
            behind = hvd.allreduce(loop, name="behind")
            c = [hvd.allreduce(x * 2, name="c"), hvd.allreduce(x * 3, name="c")]
            inner = jax.jit(lambda y: hvd.allreduce(y + 1, name="inner"))(a)
            last = hvd.allreduce(x - 1, name="last")
            return a, b, loop, behind, c, inner, last, hvd.allreduce(inner + behind, name="end")

        return compiled_in_order(program, jnp.ones(3))[1]

    first, second = ("allreduce.a", "allreduce.c", "allreduce.last"), ("allreduce.b", "allreduce.c")
    behind, inner, end = ("allreduce.behind",), ("allreduce.inner",), ("allreduce.end",)
    for order in jax_pool(2).run(work):
        assert order == [first, second, [[], [("allreduce.in",)]], behind, inner, end]
