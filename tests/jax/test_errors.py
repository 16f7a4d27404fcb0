"""Rejected calls, and failures while a compiled program runs: the error names the cause, and nothing hangs."""

import pytest

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

import horovod.jax as hvd  # noqa: E402
from tests.ranks import on_jax  # noqa: E402


def compiled(function, *arguments):
    return jax.block_until_ready(jax.jit(function)(*arguments))


@pytest.mark.parametrize("run", [compiled, lambda f, *a: f(*a)], ids=["compiled", "eager"])
@on_jax(2)
def test_bad_arguments_are_refused_at_once(run):
    flags, real, scalar = jnp.ones(4, bool), jnp.ones((4, 2)), jnp.ones(())
    for pattern, function, argument in (
        (r"allreduce\.x.*float32.*complex64", lambda t: hvd.allreduce(t, name="x"), jnp.ones(3, "complex64")),
        (r"allreduce\.x.*uint32", lambda t: hvd.allreduce(t, name="x"), jnp.ones(3, "uint32")),
        (r"bool.*Average", lambda t: hvd.allreduce(t, name="x"), flags),
        (r"op must be .*, got 17", lambda t: hvd.allreduce(t, op=17), real),
        (r"average=True and op=Sum", lambda t: hvd.allreduce(t, average=True, op=hvd.Sum), real),
        (r"name must be .*, got 3", lambda t: hvd.allreduce(t, name=3), real),
        (r"prescale_factor must be .*, got 'y'", lambda t: hvd.allreduce(t, prescale_factor="y"), real),
        (r"root_rank must be .*\[0, 1\].*, got 7", lambda t: hvd.broadcast(t, 7, "x"), real),
        (r"reducescatter\.x.*scalar", lambda t: hvd.reducescatter(t, "x"), scalar),
        (r"allgather\.x.*scalar on rank", lambda t: hvd.allgather(t, "x"), scalar),
        ("op must be one of Average, Sum, got Max", lambda t: hvd.reducescatter(t, "x", op=hvd.Max), real),
        (r"alltoall\.x.* 3.*multiples? of (the )?2", lambda t: hvd.alltoall(t[:3], name="x"), real),
        (r"\['a'\] must be an array.*, got a str", lambda t: hvd.allreduce({"a": "b", "c": t}), real),
        (r"compression must be .*, got 'fp16'", lambda t: hvd.allgather(hvd.allreduce(t, compression="fp16")), real),
        (r"name must be .*, got 3", lambda t: hvd.grouped_allgather(t, name=3), real),
    ):
        with pytest.raises(ValueError, match=rf"(?s){pattern}") as caught:
            run(function, argument)
        assert f"rank {hvd.rank()}" in str(caught.value)
    with pytest.raises(ValueError, match=rf"\['a'\] must be .*2147483647.*, got 4294967296.*on rank {hvd.rank()}"):
        hvd.allreduce({"a": 1 << 32, "b": real})
    with pytest.raises(ValueError, match=rf"the tensor must be .*, got -2147483649.*on rank {hvd.rank()}"):
        hvd.broadcast(-(1 << 31) - 1, 0)
    with pytest.raises(ValueError, match=r"grouped_allreduce: op must be .*, got 17.*rank"):
        run(lambda t: hvd.grouped_allreduce(t, op=17), real)
    assert run(lambda t: hvd.allreduce(t, name="x", op=hvd.Sum), real).tolist() == [[2, 2]] * 4


@on_jax(2)
def test_ranks_that_disagree_fail_when_the_program_runs():
    rank, texts = hvd.rank(), []
    for function, argument in (
        (lambda t: hvd.allreduce(t, name="x"), jnp.ones(3 + rank)),
        (lambda t: hvd.allgather(t, "rows"), jnp.ones(3 + rank)),
        (lambda t: hvd.broadcast(t, rank, "roots"), jnp.ones(3)),
    ):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            compiled(function, argument)
        texts.append(str(caught.value))
    with pytest.raises(NotImplementedError, match=r"splits must be None in a program.*rank"):
        compiled(lambda t: hvd.alltoall(t, splits=[1, 2]), jnp.ones(3))
    after = compiled(lambda t: hvd.allreduce(t, name="x", op=hvd.Sum), jnp.ones(2)).tolist()
    shapes, rows, roots = texts
    assert "allreduce.x" in shapes
    assert "3" in shapes
    assert "4" in shapes
    assert "got 3, 4; outside" in rows
    assert "root" in roots
    assert after == [2, 2]


def test_arguments_of_optimizers(jax_pool):
    optax = pytest.importorskip("optax")

    def work():
        for pattern, options in (
            ("backward_passes_per_step must be .*, got 0", {"backward_passes_per_step": 0}),
            ("gradient_predivide_factor must be .*, got -1", {"gradient_predivide_factor": -1}),
            ("gradient_predivide_factor must be .*, got 2.* op=Sum", {"gradient_predivide_factor": 2.0, "op": hvd.Sum}),
            (r"compression must be .*, got 'fp16'", {"compression": "fp16"}),
            (r"process_set must be a ProcessSet, got a list", {"process_set": [0]}),
            (r"op must be .*, got Adasum", {"op": hvd.Adasum}),
            (r"name must be a non-empty string, got ''", {"name": ""}),
        ):
            with pytest.raises(ValueError, match=rf"{pattern}.*on rank {hvd.rank()}"):
                hvd.DistributedOptimizer(optax.sgd(1.0), **options)
        with pytest.raises(ValueError, match=rf"optimizer must be .*, got a int.*on rank {hvd.rank()}"):
            hvd.DistributedOptimizer(3)
        for op, weight, pattern in (
            (hvd.Sum, 3, r"weight requires op=Average, got op=Sum"),
            (hvd.Average, jnp.ones(2), r"weight must be a number, got shape \(2,\)"),
            (hvd.Average, "many", r"weight must be a number, got a str"),
        ):
            optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), op=op)
            with pytest.raises(ValueError, match=rf"{pattern}.*on rank {hvd.rank()}"):
                optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)), weight=weight)
        optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), backward_passes_per_step=2)
        with pytest.raises(ValueError, match=rf"weight must be a number, got a str.*on rank {hvd.rank()}"):
            optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)), weight="many")

    for size in (1, 2):
        jax_pool(size).run(work)
