"""Rejected calls, and failures while a compiled program runs."""

import pytest

from horovod.common.ops import Adasum, Average, Max, Sum

jax = pytest.importorskip("jax")
import numpy as np  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from horovod._keras import backend_jax as backend  # noqa: E402
from horovod.common import frontends as job  # noqa: E402
from tests.keras.modules import hvd, keras  # noqa: E402
from tests.ranks import on_keras_on_jax  # noqa: E402


@pytest.fixture
def jax_pool(keras_pool):
    return keras_pool("jax")


def compiled(function, *arguments):
    return jax.block_until_ready(jax.jit(function)(*arguments))


@pytest.mark.parametrize("run", [compiled, lambda f, *a: f(*a)], ids=["compiled", "eager"])
@on_keras_on_jax(2)
def test_bad_arguments_are_refused_at_once(run):
    flags, whole, real = jnp.ones(3, bool), jnp.ones(3, "int32"), jnp.ones((3, 2))
    for pattern, function, argument in (
        (
            r"allreduce\.x.*dtype must be .*float32.*, got uint32",
            lambda t: backend.allreduce(t, "x"),
            jnp.ones(3, "uint32"),
        ),
        (r"allreduce\.x.*complex64", lambda t: backend.allreduce(t, "x"), jnp.ones(3, "complex64")),
        (r"allreduce\.x.*bool.*Average", lambda t: backend.allreduce(t, "x", Average), flags),
        (r"allreduce\.x.*bool.*prescale_factor=2", lambda t: backend.allreduce(t, "x", Max, 2.0), flags),
        (r"allreduce\.x.*op=Adasum.*int32", lambda t: backend.allreduce(t, "x", Adasum), whole),
        (r"op must be .*, got 17", lambda t: backend.allreduce(t, "x", 17), real),
        (r"name must be .*, got 3", lambda t: backend.allreduce(t, 3), real),
        (r"postscale_factor must be .*, got 'y'", lambda t: backend.allreduce(t, "x", Sum, 1.0, "y"), real),
        (r"root_rank .*'a'", lambda t: backend.broadcast(t, "a"), real),
        (r"broadcast\.x.*root_rank.*7", lambda t: backend.broadcast(t, 7, "x"), real),
    ):
        with pytest.raises(ValueError, match=pattern):
            run(function, argument)
    assert run(lambda t: backend.allreduce(t, "x", Sum), real).tolist() == [[2, 2]] * 3


@on_keras_on_jax(2)
def test_ranks_that_disagree_get_the_tensor_name_and_continue():
    rank = job.state.job.rank

    def reduce(last):
        return backend.reduce_gradients([jnp.ones(2), jnp.full((3 + last,), 2.0)], ["same", "other"], op=Sum)

    texts = []
    for function in (reduce, lambda last: compiled(lambda: reduce(last))):
        with pytest.raises(RuntimeError, match=r"(?s)allreduce\.other.*\[3\].*\[4\]|\[4\].*\[3\]") as caught:
            function(rank)
        texts.append(str(caught.value))
        assert [float(t[0]) for t in function(0)] == [2.0, 4.0]
    with pytest.raises(RuntimeError, match=r"(?s)root.*0.*1"):
        compiled(lambda: backend.broadcast(jnp.ones(3), rank, "roots"))
    assert all("rank 0" in text and "rank 1" in text for text in texts)
    assert compiled(lambda: backend.allreduce(jnp.ones(1), "later", Sum)).tolist() == [2]


@on_keras_on_jax(2, initialized=False, fresh=True)
def test_compiled_programs_outlive_their_job():
    basics = backend.basics
    function = jax.jit(lambda x: backend.allreduce(x, "outlives", Sum))
    with pytest.raises(ValueError, match="init"):
        function(jnp.ones(2))
    basics.init()
    first = function(jnp.ones(2)).tolist()
    basics.shutdown()
    with pytest.raises(RuntimeError, match=r"(?s)allreduce\.outlives.*init"):
        jax.block_until_ready(function(jnp.ones(2)))
    basics.init()
    assert (first, function(jnp.ones(2)).tolist()) == ([2, 2], [2, 2])


def test_calls_in_another_order_on_another_rank_end_by_the_stall_check(jax_pool):
    def work():
        rank = job.state.job.rank

        def function(x):
            for name in ("first", "second") if rank == 0 else ("second", "first"):
                x = backend.allreduce(x, name, Sum)
            return x

        with pytest.raises(RuntimeError, match=r"allreduce\.(first|second)"):
            compiled(function, jnp.ones(2))

    settings = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1"}
    jax_pool(2, **settings).run(work, fresh=True)


class OwnError(Exception):
    """A user-defined exception."""


@on_keras_on_jax(1)
def test_user_errors_in_the_first_step_are_raised():
    class Model(keras.Sequential):
        def train_step(self, state, data):
            raise OwnError("in train_step")

    model = Model([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    with pytest.raises(OwnError, match="in train_step"):
        model.fit(np.ones((8, 3), "float32"), np.ones((8, 2), "float32"), batch_size=4, verbose=0)
