"""Collectives on JAX arrays: eager, in compiled programs, and both mixed."""

import numpy as np
import pytest

from horovod.common.ops import Average, Sum

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

from horovod._keras import backend_jax as backend  # noqa: E402
from horovod.common import frontends as job  # noqa: E402
from tests.keras.modules import keras  # noqa: E402
from tests.ranks import on_keras_on_jax  # noqa: E402


@pytest.fixture
def jax_pool(keras_pool):
    return keras_pool("jax")


def my_rank():
    return job.state.job.rank


@on_keras_on_jax(2)
def test_gradients_of_collectives():
    rank = my_rank()
    weights = jnp.arange(3.0) + 1 + rank
    x = jnp.ones(3)
    functions = [
        lambda x: (backend.allreduce(x, "loss", Sum, prescale=0.5) * weights).sum(),
        lambda x: (backend.broadcast(x, 1, "params") * weights).sum(),
        lambda x: (x * backend.allreduce(jnp.arange(3), "whole", Sum)).sum(),
    ]
    # S averages, and both ranks have equal values: the gradient of (S(x)^2).sum() is 2 S(S(x)), and so on.
    second = jax.grad(
        lambda x: jax.grad(lambda y: (backend.allreduce(y, "twice", Sum, prescale=0.5) ** 2).sum())(x).sum()
    )
    gradients, second = [jax.jit(jax.grad(f))(x).tolist() for f in functions], float(second(x)[0])
    assert gradients[0] == [1.5, 2.5, 3.5]  # 0.5 * sum of both ranks' weights
    assert gradients[1] == ([1.5, 2.5, 3.5] if rank == 1 else [0, 0, 0])  # average on the root
    assert gradients[2] == [0, 2, 4]
    assert second == 2.0


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


@on_keras_on_jax(2)
def test_variables_get_the_values_of_the_root():
    rank = my_rank()
    variables = [
        keras.Variable(np.full((2, 3), rank, "float32"), name="weight"),
        keras.Variable(rank, dtype="int32", name="count"),
        keras.Variable(np.full((2,), rank + 5, "uint32"), dtype="uint32", name="seed"),
        keras.Variable(np.full((4,), rank, "float32"), dtype="bfloat16", name="half"),
    ]
    backend.broadcast_variables(variables, 1)
    assert [np.asarray(v.value, np.float64).ravel()[0] for v in variables] == [1, 1, 6, 1]
    assert [v.dtype for v in variables] == ["float32", "int32", "uint32", "bfloat16"]
