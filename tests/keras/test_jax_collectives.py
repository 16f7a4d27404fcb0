"""Collectives on JAX arrays: values, programs that are compiled, and the two mixed."""

import numpy as np
import pytest

from horovod.common.ops import Average, Max, Min, Product, Sum

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

from horovod._keras import backend_jax as backend  # noqa: E402
from horovod.common import state as job  # noqa: E402
from horovod.common.process_sets import add_process_set  # noqa: E402

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
CASES = [(d, o) for d in DTYPES for o in (Average, Sum, Min, Max, Product) if (d, o) != ("bool", Average)]
SHAPES = [(), (7,), (3, 5), (0,), (1031,)]


@pytest.fixture
def jax_pool(keras_pool):
    return keras_pool("jax")


def my_rank():
    return job.state.job.rank


def value(rank, dtype, shape):
    """Small whole numbers, exact in every dtype; the same in every process."""
    return np.random.default_rng([rank, len(shape), *shape]).integers(0, 4, shape).astype(jnp.dtype(dtype))


def reduced(op, dtype, shape, ranks):
    """In double precision: integers lose what is behind the point."""
    inputs = np.stack([value(rank, dtype, shape).astype(np.float64) for rank in range(ranks)])
    if dtype == "bool":
        return inputs.min(0) if op in (Min, Product) else inputs.max(0)
    function = {Sum: np.sum, Average: np.sum, Min: np.min, Max: np.max, Product: np.prod}[op]
    result = function(inputs, 0) / (ranks if op == Average else 1)
    return result if np.dtype(dtype).kind == "f" or dtype == "bfloat16" else np.trunc(result)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.heavy), 3])
def test_every_dtype_shape_and_operation(jax_pool, ranks):
    def work():
        def reduce(tensors):
            return {
                (dtype, op): backend.reduce_gradients(tensors[dtype], [f"{dtype}.{op}.{s}" for s in SHAPES], op=op)
                for dtype, op in CASES
            }

        jax.config.update("jax_enable_x64", True)
        try:
            tensors = {dtype: [jnp.asarray(value(my_rank(), dtype, shape)) for shape in SHAPES] for dtype in DTYPES}
            # One program, in which calls follow one another.
            for results in (reduce(tensors), jax.jit(reduce)(tensors)):
                for (dtype, op), arrays in results.items():
                    for shape, result in zip(SHAPES, arrays, strict=True):
                        right = reduced(op, dtype, shape, ranks)
                        # Thirds: multiplied by 1/3 here, divided there.
                        close = 2 * jnp.finfo(dtype).eps if op == Average and jnp.dtype(dtype).kind in "fV" else 0
                        assert result.dtype == dtype
                        assert np.allclose(np.asarray(result, np.float64), right, rtol=close, atol=0), (dtype, op)
        finally:
            jax.config.update("jax_enable_x64", False)

    jax_pool(ranks).run(work)


def test_broadcast_allgather_and_reducescatter_of_values(jax_pool):
    def work():
        rank = my_rank()
        rows = jnp.full((rank + 1, 2), rank, "bfloat16")
        return (
            np.asarray(backend.broadcast(jnp.asarray([rank, 7], "uint32"), 1, "seed")),
            np.asarray(jax.jit(lambda x: backend.broadcast(x, 1, "compiled"))(jnp.full((3,), rank, "float16"))),
            np.asarray(backend.allgather(rows, "rows"), np.float32),
            np.asarray(backend.reducescatter(jnp.arange(5.0), "parts", Sum)),
            np.asarray(backend.allgather(jnp.zeros((0, 3)), "nothing")).shape,
        )

    for rank, (seed, compiled, rows, part, nothing) in enumerate(jax_pool(2).run(work)):
        assert seed.tolist() == [1, 7]
        assert seed.dtype == np.uint32
        assert compiled.tolist() == [1, 1, 1]
        assert rows.tolist() == [[0, 0], [1, 1], [1, 1]]
        assert part.tolist() == ([0, 2, 4] if rank == 0 else [6, 8])
        assert nothing == (0, 3)


def test_gradients_of_collectives(jax_pool):
    def work():
        rank = my_rank()
        weights = jnp.arange(3.0) + 1 + rank
        x = jnp.ones(3)
        functions = [
            lambda x: (backend.allreduce(x, "loss", Sum, prescale=0.5) * weights).sum(),
            lambda x: (backend.broadcast(x, 1, "params") * weights).sum(),
            lambda x: (x * backend.allreduce(jnp.arange(3), "whole", Sum)).sum(),
        ]
        # S halves and adds, both ranks have equal values: the gradient of (S(x)^2).sum() is 2 S(S(x)), and so on.
        second = jax.grad(
            lambda x: jax.grad(lambda y: (backend.allreduce(y, "twice", Sum, prescale=0.5) ** 2).sum())(x).sum()
        )
        return [jax.jit(jax.grad(f))(x).tolist() for f in functions], float(second(x)[0])

    for rank, (gradients, second) in enumerate(jax_pool(2).run(work)):
        assert gradients[0] == [1.5, 2.5, 3.5]  # 0.5 * sum of both ranks' weights
        assert gradients[1] == ([1.5, 2.5, 3.5] if rank == 1 else [0, 0, 0])  # average on the root
        assert gradients[2] == [0, 2, 4]
        assert second == 2.0


def test_control_flow_batches_and_donation(jax_pool):
    def work():
        rank = my_rank()
        x = jnp.arange(4.0) + rank

        def body(carry, _):
            carry = backend.allreduce(carry, "scanned", Average)
            return carry + rank, carry[0]

        _, firsts = jax.jit(lambda x: jax.lax.scan(body, x, None, length=4))(x)
        branch = jax.jit(
            lambda c, x: jax.lax.cond(c, lambda: backend.allreduce(x, "branch", Sum), lambda: jnp.zeros_like(x))
        )
        batched = jax.jit(jax.vmap(lambda row: backend.allreduce(row, "rows", Sum)))(jnp.stack([x, 10 * x]))
        state_ = jnp.full((1000,), float(rank))
        step = jax.jit(lambda s: backend.reduce_gradients([s * 2, s + 1], ["s2", "s1"], op=Sum)[0], donate_argnums=0)
        for _ in range(3):
            state_ = step(state_)
        kept = jnp.full((10,), float(rank))  # an input that is used again must not be overwritten
        total = jax.jit(lambda k: backend.allreduce(k, "kept", Sum) + 0 * k)(kept)
        # Used by one rank alone: takes place on all.
        unused = jax.jit(lambda k: k + ((backend.allreduce(k, "unused", Sum), 0)[rank] * 0.0))(kept)
        return (
            firsts.tolist(),
            branch(True, x).tolist(),
            branch(False, x).tolist(),
            batched.tolist(),
            float(state_[0]),
            (kept.tolist(), total.tolist(), unused.tolist()),
        )

    for rank, (firsts, taken, skipped, batched, final, (kept, total, unused)) in enumerate(jax_pool(2).run(work)):
        assert firsts == [0.5, 1.0, 1.5, 2.0]
        assert taken == [1, 3, 5, 7]
        assert skipped == [0, 0, 0, 0]
        assert batched == [[1, 3, 5, 7], [10, 30, 50, 70]]
        assert final == 32.0  # (0 + 1) * 2, doubled and added twice
        assert kept == unused == [rank] * 10
        assert total == [1] * 10


def test_one_rank_runs_eagerly_while_the_other_compiles(jax_pool):
    def work():
        rank = my_rank()
        tensors = [jnp.full((n,), rank + n, "float32") for n in (3, 1, 500)]

        def reduce(tensors):
            return backend.reduce_gradients(tensors, ["a", "b", "c"], op=Sum, groups=[[0, 2]])

        function = jax.jit(reduce) if rank == 0 else reduce
        return [[float(t[0]) for t in function(tensors)] for _ in range(12)]

    assert jax_pool(2).run(work) == [[[7.0, 3.0, 1001.0]] * 12] * 2


def test_gradients_may_be_missing_compressed_grouped_and_sparse(jax_pool):
    class Halves:
        @staticmethod
        def compress(tensor):
            return tensor.astype("float16"), tensor.dtype

        @staticmethod
        def decompress(tensor, context):
            return tensor.astype(context)

    def work():
        from jax.experimental import sparse

        rank = my_rank()
        third = jnp.full((4,), 1 / 3 + rank, "float32")

        def reduce(third, **options):
            return backend.reduce_gradients([third, None, third * 3], ["a", "b", "c"], op=Average, **options)

        results = {}
        for name, options in (
            ("plain", {}),
            ("of the user", {"compression": Halves}),
            ("halves", {"compression": backend.Compression.fp16}),
            ("a group", {"groups": [[2, 0]]}),
            ("on the wire", {"compression": backend.Compression.wire_bf16}),
        ):
            for kind, function in (("eager", reduce), ("compiled", jax.jit(lambda t, o=options: reduce(t, **o)))):
                first, none, last = function(third, **options) if kind == "eager" else function(third)
                assert none is None
                results[name, kind] = (str(first.dtype), float(first[0]), float(last[0]))
        dense = jnp.zeros((3, 2)).at[rank].set(1.0 + rank)
        (summed,) = backend.reduce_gradients(
            [sparse.BCOO.fromdense(dense)], ["embedding"], op=Sum, sparse_as_dense=True
        )
        with pytest.raises(ValueError, match=r"embedding.*sparse_as_dense"):
            backend.reduce_gradients([sparse.BCOO.fromdense(dense)], ["embedding"])
        return results, summed.tolist()

    for results, summed in jax_pool(2).run(work):
        third = np.float32(1 / 3)
        for (name, _), (dtype, first, last) in results.items():
            assert dtype == "float32"
            exact = (np.float32(third + np.float32(1 + third)) / 2, pytest.approx(2.5))
            if name in ("plain", "a group"):
                assert (first, last) == exact
            else:
                assert (first, last) == (pytest.approx(5 / 6, rel=1e-2), pytest.approx(2.5, rel=1e-2))
                assert first != exact[0], name
        assert summed == [[1, 1], [2, 2], [0, 0]]


def test_process_sets(jax_pool):
    def work():
        rank = my_rank()
        pair = add_process_set([0, 2])
        mine = jnp.full((2,), float(rank))
        everybody = jax.jit(lambda x: backend.allreduce(x, "same", Sum))(mine)
        function = jax.jit(lambda x: backend.allreduce(x, "same", Average, process_set=pair))
        if rank == 1:
            with pytest.raises(ValueError, match="rank 1"):
                function(mine)
        else:
            assert function(mine).tolist() == [1, 1]
        return everybody.tolist()

    assert jax_pool(3, HOROVOD_DYNAMIC_PROCESS_SETS="1").run(work) == [[3, 3]] * 3


def test_variables_get_the_values_of_the_root(jax_pool):
    def work():
        import keras

        rank = my_rank()
        variables = [
            keras.Variable(np.full((2, 3), rank, "float32"), name="weight"),
            keras.Variable(rank, dtype="int32", name="count"),
            keras.Variable(np.full((2,), rank + 5, "uint32"), dtype="uint32", name="seed"),
            keras.Variable(np.full((4,), rank, "float32"), dtype="bfloat16", name="half"),
        ]
        backend.broadcast_variables(variables, 1)
        return [np.asarray(v.value, np.float64).ravel()[0] for v in variables], [v.dtype for v in variables]

    assert jax_pool(2).run(work) == [([1, 1, 6, 1], ["float32", "int32", "uint32", "bfloat16"])] * 2


def test_names_are_apart_from_those_of_pytorch(jax_pool):
    pytest.importorskip("torch")

    def work():
        import torch

        import horovod.torch as hvd

        handle = hvd.allreduce_async_(torch.full((3,), 1.0 + my_rank()), op=hvd.Sum, name="same")
        ours = jax.jit(lambda x: backend.allreduce(x, "same", Average))(jnp.full((2, 2), float(my_rank())))
        return np.asarray(ours).tolist(), hvd.synchronize(handle).tolist()

    assert jax_pool(2).run(work) == [([[0.5, 0.5]] * 2, [3.0] * 3)] * 2
