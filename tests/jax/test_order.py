"""Programs whose calls ranks write, or compile, in different orders finish with the right values."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

import horovod.jax as hvd  # noqa: E402
from tests.jax import hlo, programs  # noqa: E402
from tests.ranks import on_jax  # noqa: E402


@on_jax(2)
def test_names_used_twice_and_calls_without_names():
    def program(x):
        twice = [hvd.allreduce(x + i, name="same") for i in range(3)]
        return twice, [hvd.allreduce(x * i) for i in range(3)]

    twice, unnamed = jax.jit(program)(jnp.full(3, float(hvd.rank())))
    assert ([float(one[0]) for one in twice], [float(one[0]) for one in unnamed]) == ([0.5, 1.5, 2.5], [0.0, 0.5, 1.0])


def test_only_independent_calls_are_merged(jax_pool):
    def work():
        def program(x):
            first = [hvd.allreduce(x + i, name=f"first.{i}") for i in range(10)]
            return hvd.allreduce(sum(first), name="second")

        text = jax.jit(program).lower(jnp.ones(3)).as_text()
        return text.count("custom_call @horovod_collective")

    assert jax_pool(2).run(work) == [2, 2]


def compiled_in_order(program, *args):
    """Return a compiled program after checking that all ranks make the same collectives in the same enforced order."""
    compiled = jax.jit(program).lower(*args).compile()
    own = hlo.order(compiled.as_text())
    everyone = hvd.allgather_object(own)
    assert everyone == [own] * hvd.size()
    return compiled, own


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(i, marks=pytest.mark.heavy) for i in (1, 2, *range(4, 16)))])
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
