"""Collectives of horovod.jax, eager and in compiled programs: dtypes, shapes, pytrees, process sets."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

import horovod.jax as hvd  # noqa: E402
from tests import weighted  # noqa: E402
from tests.ranks import on_jax  # noqa: E402

# The conformance suite has the others, outside of programs.
DTYPES = ["bool", "uint16", "int64", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2"]


def value(rank, dtype, shape):
    """Return small integers, exact in every dtype; deterministic."""
    return np.random.default_rng([rank, len(shape), *shape]).integers(0, 4, shape).astype(jnp.dtype(dtype))


def exact(array):
    return np.asarray(array).astype(np.float64).tolist()


def test_dtypes_in_every_collective(jax_pool):
    ranks = 2

    def work():
        def collectives(arrays):
            op = {dtype: hvd.Max if dtype == "bool" else hvd.Sum for dtype in arrays}
            return {
                dtype: {
                    "allreduce": hvd.allreduce(one, name=dtype, op=op[dtype]),
                    "broadcast": hvd.broadcast(one, ranks - 1, dtype),
                    "allgather": hvd.allgather(one, dtype),
                    "alltoall": hvd.alltoall(one, name=dtype),
                    "reducescatter": one if dtype == "bool" else hvd.reducescatter(one, dtype, op=hvd.Sum),
                }
                for dtype, one in arrays.items()
            }

        with jax.enable_x64(True):
            arrays = {dtype: jnp.asarray(value(hvd.rank(), dtype, (6, 5))) for dtype in DTYPES}
            both = collectives(arrays), jax.jit(collectives)(arrays)
            for results in both:
                assert all(one.dtype == dtype for dtype, row in results.items() for one in row.values())
            return [{d: {n: exact(one) for n, one in row.items()} for d, row in r.items()} for r in both]

    for rank, both in enumerate(jax_pool(ranks).run(work)):
        for results in both:
            for dtype in DTYPES:
                inputs = [value(r, dtype, (6, 5)).astype(np.float64) for r in range(ranks)]
                own = slice(rank * 6 // ranks, (rank + 1) * 6 // ranks)
                total = np.max(inputs, 0) if dtype == "bool" else np.sum(inputs, 0)
                right = {
                    "allreduce": total,
                    "broadcast": inputs[-1],
                    "allgather": np.concatenate(inputs),
                    "alltoall": np.concatenate([one[own] for one in inputs]),
                    "reducescatter": inputs[rank] if dtype == "bool" else total[own],
                }
                for name, expected in right.items():
                    rounded = expected.astype(jnp.dtype(dtype)).astype(np.float64)  # 8-bit floats cannot represent 9
                    assert results[dtype][name] == rounded.tolist(), (dtype, name)


@on_jax(2)
def test_pytrees_unsigned_integers_and_rows_that_differ():
    rank = hvd.rank()
    tree = {"a": jnp.full((2,), float(rank)), "b": [rank, (jnp.ones((3, 1)) * rank, None)]}
    summed = hvd.allreduce(tree, op=hvd.Sum, name="tree")
    grouped = jax.jit(lambda t: hvd.grouped_allreduce(t, op=hvd.Sum))(tree)
    alike = jax.tree_util.tree_map(lambda a, b: (a == b).all(), summed, grouped)
    assert all(jax.tree_util.tree_leaves(alike))
    rows, received = hvd.alltoall(jnp.arange(3) + 10 * rank, splits=[1 + rank, 2 - rank])
    tree, rows, part, compiled, moved, scalar, nothing = (
        jax.tree_util.tree_map(lambda a: np.asarray(a).ravel().tolist(), summed),
        hvd.allgather(jnp.full((rank + 1, 1), rank, "uint32"), "uneven").ravel().tolist(),
        hvd.reducescatter(jnp.arange(5.0), "uneven", op=hvd.Sum).tolist(),
        jax.jit(lambda x: hvd.reducescatter(x, "uneven", op=hvd.Sum))(jnp.arange(5.0)).tolist(),
        (rows.tolist(), received.tolist()),
        exact(hvd.allreduce(jnp.float32(rank), average=False)),
        hvd.allgather({}, "nothing"),
    )
    assert tree == {"a": [1.0, 1.0], "b": [[1], ([1.0] * 3, None)]}
    assert rows == [0, 1, 1]
    assert part == compiled == ([0, 2, 4] if rank == 0 else [6, 8])
    assert moved == (([0, 10, 11], [1, 2]) if rank == 0 else ([1, 2, 12], [2, 1]))
    assert scalar == 1.0
    assert nothing == {}


@on_jax(2)
def test_alltoall_of_pytrees():
    rank = hvd.rank()
    tree = {"a": jnp.arange(4) + 10 * rank, "b": [jnp.full((2, 2), rank, "uint32"), None]}
    results = [run(lambda t: hvd.alltoall(t, name="tree"))(tree) for run in (jax.jit, lambda f: f)]
    ragged, received = hvd.alltoall((jnp.arange(3) + 10 * rank, jnp.ones((3, 2)) * rank), splits=[1 + rank, 2 - rank])
    assert hvd.alltoall({}) == {}
    with pytest.raises(ValueError, match=r"splits must be None for a tree without arrays, got \[1, 2\] on rank"):
        hvd.alltoall([], splits=[1, 2])
    with pytest.raises(ValueError, match=r"alltoall\.tree\['b'\].*3.*2"):
        hvd.alltoall({"a": jnp.ones(2), "b": jnp.ones(3)}, name="tree")
    lists = [(t["a"].tolist(), t["b"][0].tolist(), t["b"][0].dtype.name) for t in results]
    ragged = [one[:, 0].tolist() if one.ndim == 2 else one.tolist() for one in ragged]
    one = ([0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13], [[0, 0], [1, 1]], "uint32")
    assert lists == [one, one]
    assert ragged == ([[0, 10, 11], [0, 1, 1]] if rank == 0 else [[1, 2, 12], [0, 0, 1]])
    assert received.tolist() == ([1, 2] if rank == 0 else [2, 1])


@on_jax(2)
def test_compression():
    third = jnp.full((300,), 1 / 3 + hvd.rank())
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16, hvd.Compression.wire_bf16):
        one = jax.jit(lambda x, c=compression: hvd.allreduce(x, name="third", compression=c))(third)
        assert one.dtype == "float32"
        assert float(one[0]) == pytest.approx(5 / 6, rel=1e-2)
        assert float(one[0]) != float(np.float32(5 / 6))


def test_one_rank_runs_eagerly_while_the_other_compiles(jax_pool):
    def work():
        def collectives(x):
            a = hvd.allreduce({"u": x, "v": x * 2}, name="a", op=hvd.Sum)
            b = hvd.allgather(a["u"], "b")
            c = hvd.alltoall(b, name="c")
            d = hvd.reducescatter(c, "d")
            return a, b, c, d, hvd.barrier(hvd.broadcast(d, 1, "e"))

        function = jax.jit(collectives) if hvd.rank() == 0 else collectives
        return [
            [np.asarray(one).tolist() for one in jax.tree_util.tree_leaves(function(jnp.arange(4.0)))] for _ in "12"
        ]

    first, second = jax_pool(2).run(work)
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert first[0][:3] == second[0][:3] == [[0, 2, 4, 6], [0, 4, 8, 12], [0, 2, 4, 6, 0, 2, 4, 6]]


@pytest.mark.heavy
@on_jax(2)
def test_weighted_averages():
    with jax.enable_x64(True):
        weighted.check(hvd, jnp.asarray, None, ("float16", "bfloat16"), jax.jit)
    n = 1.0 + 2 * hvd.rank()
    loss = jax.grad(lambda x: (hvd.allreduce({"a": x}, weight=n, name="differentiable")["a"] * jnp.arange(2.0)).sum())
    np.testing.assert_allclose(loss(jnp.ones(2)), 2 * n / 4 * np.arange(2.0), rtol=1e-6)
