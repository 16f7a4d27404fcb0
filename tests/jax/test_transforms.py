"""Collectives under JAX's transformations: derivatives, batches, loops, branches, donation."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

import horovod.jax as hvd  # noqa: E402
from tests.ranks import on_jax  # noqa: E402


@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["compiled", "eager"])
@on_jax(2)
def test_gradients(run):
    rank = hvd.rank()
    w = jnp.arange(4.0) + 1 + rank  # 1 2 3 4 and 2 3 4 5
    long = jnp.arange(8.0)
    functions = [
        lambda x: (hvd.allreduce(x, name="a", op=hvd.Sum, prescale_factor=0.5) * w).sum(),
        lambda x: (hvd.allreduce(x, name="b") * w).sum(),
        lambda x: (hvd.broadcast(x, 1, "c") * w).sum(),
        lambda x: (hvd.allgather(x, "d") * long * (1 + rank)).sum(),
        lambda x: (hvd.alltoall(x, name="e") * w).sum(),
        lambda x: (hvd.reducescatter(x, "f", op=hvd.Sum) * (1 + rank)).sum(),
        lambda x: (hvd.reducescatter(x[:3], "g") * (1 + rank)).sum(),
        lambda x: (x * hvd.allreduce(jnp.arange(4), name="h", op=hvd.Sum)).sum(),
        lambda x: (hvd.barrier(x) * w).sum(),
    ]
    g = [run(jax.grad(f))(jnp.ones(4)).tolist() for f in functions]
    assert g[0] == g[1] == [1.5, 2.5, 3.5, 4.5]
    assert g[2] == ([1.5, 2.5, 3.5, 4.5] if rank == 1 else [0] * 4)
    assert g[3] == [1.5 * (i + 4 * rank) for i in range(4)]
    assert g[4] == ([1, 2, 2, 3] if rank == 0 else [3, 4, 4, 5])
    assert g[5] == [2, 2, 4, 4]  # times 2, the number of ranks, as in other frontends
    assert g[6] == [1, 1, 2, 0]
    assert g[7] == [0, 2, 4, 6]
    assert g[8] == [i + 1.0 + rank for i in range(4)]


@on_jax(2)
def test_other_derivatives_and_batches():
    rank = hvd.rank()

    def half(x):
        return hvd.allreduce(x, name="half", op=hvd.Sum, prescale_factor=0.5)

    x = jnp.arange(3.0) + rank
    forward = jax.jvp(half, (x,), (jnp.full(3, 1.0 + rank),))
    second = jax.jit(jax.grad(lambda x: jax.grad(lambda y: (half(y) ** 2).sum())(x).sum()))(x)
    rows = jnp.stack([x, 10 * x, 100 * x])
    batched = jax.vmap(lambda row: hvd.allreduce(row, name="rows", op=hvd.Sum), in_axes=1, out_axes=1)(rows.T)
    gathered = jax.jit(jax.vmap(lambda row: hvd.allgather(row, "rows")))(rows)
    each = jax.vmap(jax.grad(lambda row: (hvd.allreduce(row, name="each") ** 2).sum()))(rows)
    with jax.disable_jit():
        plain = jax.vmap(lambda row: hvd.reducescatter(row, "plain", op=hvd.Sum))(rows)
    kept = jax.jit(jax.checkpoint(lambda x: jnp.sin(half(x)).sum()))
    remade = jax.jit(jax.grad(kept))(x)
    results = (*forward, second, batched, gathered, each, plain)
    value, tangent, second, batched, gathered, each, plain = [np.asarray(one).tolist() for one in results]
    assert value == [0.5, 1.5, 2.5]
    assert tangent == [1.5] * 3
    assert second == [2.0] * 3
    assert np.transpose(batched).tolist() == [[1, 3, 5], [10, 30, 50], [100, 300, 500]]
    assert gathered[1] == [0, 10, 20, 10, 20, 30]
    assert each[0] == [1.0, 3.0, 5.0]
    assert plain == ([[1, 3], [10, 30], [100, 300]] if rank == 0 else [[5], [50], [500]])
    assert remade.tolist() == pytest.approx(np.cos([0.5, 1.5, 2.5]).tolist(), rel=1e-5)


@on_jax(2)
def test_reductions_without_a_gradient():
    rank = hvd.rank()

    def loss(x, op):
        return (hvd.allreduce(x, name="r", op=op) ** 2).sum()

    def with_metric(x):
        return (x**2).sum(), hvd.allreduce(x, name="metric", op=hvd.Max)

    x = jnp.ones(2) * (1 + rank)
    for op in (hvd.Min, hvd.Max, hvd.Product):
        for derive in (jax.grad, lambda f: jax.jit(jax.grad(f))):
            with pytest.raises(NotImplementedError, match="has no gradient"):
                derive(lambda x, op=op: loss(x, op))(x)
    # Operations whose gradient is not needed raise no error.
    for derive in (jax.value_and_grad, lambda f, has_aux: jax.jit(jax.value_and_grad(f, has_aux=has_aux))):
        (_, metric), gradient = derive(with_metric, has_aux=True)(x)
        assert (metric.tolist(), gradient.tolist()) == ([2, 2], [2.0 * (1 + rank)] * 2)


@on_jax(2)
def test_loops_branches_donation_and_use_on_one_rank():
    rank = hvd.rank()
    x = jnp.arange(4.0) + rank

    def body(carry, _):
        carry = hvd.allreduce(carry, name="scanned")
        return carry + rank, carry[0]

    _, firsts = jax.jit(lambda x: jax.lax.scan(body, x, None, length=4))(x)
    through = jax.jit(jax.grad(lambda x: jax.lax.scan(body, x, None, length=2)[0].sum()))(x)

    def more(state):
        return hvd.allreduce(state, name="bound", op=hvd.Max)[0] < 10

    looped = jax.jit(lambda x: jax.lax.while_loop(more, lambda s: s + hvd.broadcast(s, 1, "grow"), x))(x)
    branch = jax.jit(
        lambda c, x: jax.lax.cond(c, lambda: hvd.allreduce(x, name="yes", op=hvd.Sum), lambda: jnp.zeros_like(x))
    )
    state = jnp.full((1000,), float(rank))
    step = jax.jit(lambda s: hvd.allreduce({"a": s * 2, "b": s + 1}, op=hvd.Sum)["a"], donate_argnums=0)
    for _ in range(3):
        state = step(state)
    kept = jnp.full((10,), float(rank))  # an input that is used again must not be overwritten
    total = jax.jit(lambda k: hvd.allreduce(k, name="kept", op=hvd.Sum) + 0 * k)(kept)
    unused = jax.jit(lambda k: k + ((hvd.allreduce(k, name="unused", op=hvd.Sum), 0)[rank] * 0.0))(kept)
    lists = (firsts, through, looped, branch(True, x), branch(False, x), state[:1], kept, total, unused)
    firsts, through, looped, yes, no, state, kept, total, unused = [np.asarray(one).tolist() for one in lists]
    assert firsts == [0.5, 1.0, 1.5, 2.0]
    assert through == [1.0] * 4
    assert looped[0] == (15.0 if rank == 0 else 16.0)
    assert yes == [1, 3, 5, 7]
    assert no == [0] * 4
    assert state == [32.0]
    assert kept == unused == [rank] * 10
    assert total == [1] * 10
