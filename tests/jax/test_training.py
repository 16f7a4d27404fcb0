"""Optimizers, gradients, parameters and objects; networks of popular libraries."""

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
from jax import numpy as jnp  # noqa: E402

import horovod.jax as hvd  # noqa: E402
from horovod.common.exceptions import OutOfSyncError  # noqa: E402
from tests.ranks import on_jax  # noqa: E402

STEPS = 4


def data(rank, ranks=2):
    """Return this rank's part of 12 samples (x: 3 numbers, y: one) that do not depend on the number of ranks."""
    rows = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")[rank::ranks]
    return rows[:, :3], rows[:, 3:]


def loss_of(params, x, y):
    return ((jnp.tanh(x @ params["w"]) + params["b"] - y) ** 2).mean()


def start():
    return {"w": jnp.full((3, 1), 0.1), "b": jnp.zeros(1)}


def trained(optimizer, batches, **extra):
    params = start()
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x, y):
        updates, state = optimizer.update(jax.grad(loss_of)(params, x, y), state, params, **extra)
        return optax.apply_updates(params, updates), state

    for x, y in batches:
        params, state = step(params, state, x, y)
    return jax.tree_util.tree_map(np.asarray, params)


@functools.cache
def alone():
    """Return what one process computes from all samples."""
    return trained(optax.adam(0.1), [data(0, 1)] * STEPS)


def close(one, other):
    return all(
        np.allclose(a, b, rtol=1e-4, atol=1e-6)
        for a, b in zip(jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other), strict=True)
    )


@on_jax(2)
def test_distributed_optimizers_equal_one_process():
    uneven = tuple(part[(0, 4)[hvd.rank()] : (4, 12)[hvd.rank()]] for part in data(0, 1))
    weighted = trained(hvd.DistributedOptimizer(optax.adam(0.1)), [uneven] * STEPS, weight=len(uneven[0]))
    assert close(weighted, alone())


@pytest.mark.heavy
@on_jax(2)
def test_optimizer_options_equal_one_process():
    own = data(hvd.rank())
    adam = optax.adam(0.1)
    halves = [tuple(part[:3] for part in own), tuple(part[3:] for part in own)]
    results = {
        "plain": trained(hvd.DistributedOptimizer(adam), [own] * STEPS),
        "predivided": trained(hvd.DistributedOptimizer(adam, gradient_predivide_factor=2.0), [own] * STEPS),
        "accumulated": trained(
            hvd.DistributedOptimizer(adam, backward_passes_per_step=2, average_aggregated_gradients=True),
            halves * STEPS,
        ),
        "chained": trained(optax.chain(hvd.DistributedOptimizer(optax.identity()), adam), [own] * STEPS),
    }
    bf16 = trained(hvd.DistributedOptimizer(adam, compression=hvd.Compression.bf16), [own] * STEPS)
    hvd.check_in_sync(bf16)
    assert np.allclose(bf16["w"], results["plain"]["w"], atol=2e-2)
    for name, params in results.items():
        assert close(params, alone()), name


def test_passes_outside_of_programs_and_sets(jax_pool):
    def work():
        pair, updates = hvd.add_process_set([0, 1]), []
        for more in ({}, {"average_aggregated_gradients": True}):
            optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), backward_passes_per_step=2, process_set=pair, **more)
            state = optimizer.init(jnp.zeros(2))
            for _ in range(4):
                update, state = optimizer.update(jnp.full(2, 1.0 + hvd.rank()), state)
                updates.append(float(update[0]))
        return updates

    expected = [[0, -3, 0, -3, 0, -1.5, 0, -1.5]] * 2 + [[0, -6, 0, -6, 0, -3, 0, -3]]
    assert jax_pool(3, HOROVOD_DYNAMIC_PROCESS_SETS="1").run(work) == expected


def test_value_and_grad(jax_pool):
    def work():
        x, y = (part[: 4 + 2 * hvd.rank()] for part in data(hvd.rank()))
        both = jax.jit(hvd.value_and_grad(loss_of, weight=lambda params, x, y: len(x)))(start(), x, y)
        aux = hvd.grad(lambda p, x, y: (loss_of(p, x, y), len(x)), has_aux=True)(start(), x, y)
        return jax.tree_util.tree_map(np.asarray, both), aux[1]

    parts = [tuple(part[: 4 + 2 * rank] for part in data(rank)) for rank in range(2)]
    whole = [np.concatenate(part) for part in zip(*parts, strict=True)]
    right = jax.value_and_grad(loss_of)(start(), *whole)
    for rank, (both, count) in enumerate(jax_pool(2).run(work)):
        assert close(both, right)
        assert count == 4 + 2 * rank


@pytest.mark.heavy
@pytest.mark.parametrize(
    "run", [pytest.param(jax.jit, id="compiled", marks=pytest.mark.heavy), pytest.param(lambda f: f, id="eager")]
)
@on_jax(2)
def test_weighted_means_in_few_bits(run):
    """Counts that 16 bits cannot hold, multiplied by large gradients; a rank without samples has NaN."""

    counts, base = (70000, 30000), jnp.asarray([100.0, -3.5, 0.25, 200.0])
    for dtype, close in (("float16", 2e-3), ("bfloat16", 2e-2), ("float8_e5m2", 0.3), ("float32", 1e-6)):
        own = {"w": (base * (1 + hvd.rank())).astype(dtype)}
        right = np.asarray(base) * (0.7 * 1 + 0.3 * 2)
        for options in ({}, {"gradient_predivide_factor": 4.0}, {"compression": hvd.Compression.fp16}):
            for passes in (1, 2):
                optimizer = hvd.DistributedOptimizer(
                    optax.identity(), f"{dtype}.{passes}", backward_passes_per_step=passes, **options
                )
                update = run(lambda g, s, n, o=optimizer: o.update(g, s, weight=n))
                state = optimizer.init(own)
                for count in (counts[hvd.rank()], 0)[:passes]:
                    gradients = own if count else {"w": own["w"] * jnp.nan}
                    updates, state = update(gradients, state, count)
                assert updates["w"].dtype == dtype
                rough = max(close, 2e-3 if "compression" in options else 0)
                np.testing.assert_allclose(updates["w"].astype("float32"), right, rtol=rough)
                for _ in range(passes):
                    updates, state = update({"w": own["w"] * jnp.nan}, state, 0)
                assert not updates["w"].any()


@on_jax(2)
def test_parameters_and_objects():
    rank = hvd.rank()
    state = optax.adam(0.1).init({"w": jnp.full(3, float(rank))})
    tree = {"state": state, "key": jax.random.key(rank), "small": jnp.ones(2, "float8_e5m2") * rank, "f": jnp.sin}
    got = hvd.broadcast_parameters({**tree, "seed": np.uint32(rank), "half": jnp.bfloat16(rank)}, 1)
    assert got["f"] is jnp.sin
    assert got["small"].dtype == "float8_e5m2"
    hvd.check_in_sync({"numbers": [got["half"], got["seed"]], "key": got["key"]})
    with pytest.raises(OutOfSyncError, match=r"mine.*w"):
        hvd.check_in_sync(mine={"w": jnp.ones(2) * rank})
    assert (
        jax.random.key_data(got["key"]).tolist(),
        int(got["seed"]),
        float(got["small"][0]),
        hvd.broadcast_object({"rank": rank}, 1),
        hvd.allgather_object("x" * rank),
    ) == ([0, 1], 1, 1.0, {"rank": 1}, ["", "x"])


def of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.second = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x):
            return self.second(nnx.tanh(self.first(x)))

    definition, state = nnx.split(Net(nnx.Rngs(hvd.rank())))
    return state, lambda state, x: nnx.merge(definition, state)(x)


def of_equinox():
    eqx = pytest.importorskip("equinox")
    arrays, rest = eqx.partition(eqx.nn.MLP(3, 1, 8, 1, key=jax.random.key(hvd.rank())), eqx.is_array)
    return arrays, lambda arrays, x: jax.vmap(eqx.combine(arrays, rest))(x)


@pytest.mark.heavy
@pytest.mark.parametrize("make", [of_nnx, of_equinox])
def test_networks_of_other_libraries(jax_pool, make):
    def work():
        x, y = data(hvd.rank())
        params, apply = make()
        params = hvd.broadcast_parameters(params)
        optimizer = hvd.DistributedOptimizer(optax.adam(0.05))
        state = optimizer.init(params)

        @jax.jit
        def step(params, state):
            loss, grads = jax.value_and_grad(lambda p: ((apply(p, x) - y) ** 2).mean())(params)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, hvd.allreduce(loss, name="loss")

        losses = []
        for _ in range(8):
            params, state, loss = step(params, state)
            losses.append(float(loss))
        hvd.check_in_sync(jax.tree_util.tree_leaves(params))
        return losses

    first, second = jax_pool(2).run(work)
    assert first == second
    assert first[-1] < first[0]


@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["compiled", "eager"])
@pytest.mark.parametrize("passes", [1, 2])
@on_jax(1)
def test_weights_also_apply_without_other_ranks(run, passes):
    optimizer = hvd.DistributedOptimizer(optax.trace(0.9), backward_passes_per_step=passes)
    update, found = run(lambda g, s, n: optimizer.update(g, s, weight=n)), []
    state = optimizer.init({"w": jnp.zeros(2)})
    for weight, number in ((5, 3.0), (0, jnp.nan)):
        gradients = {"w": jnp.full(2, number)}
        for _ in range(passes):
            updates, state = update(gradients, state, weight)
        found.append(updates["w"].tolist())
    loss, _ = hvd.value_and_grad(lambda w: w.mean(), weight=lambda w: w.size)(jnp.ones(0))
    assert [*found, float(loss)] == [[3.0, 3.0], [0.0, 0.0], 0.0]
