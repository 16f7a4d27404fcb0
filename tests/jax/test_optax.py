"""DistributedOptimizer with Optax transformations that use the loss, and with those that skip steps."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
from jax import numpy as jnp  # noqa: E402

import horovod.jax as hvd  # noqa: E402
from horovod.common.exceptions import HorovodInternalError  # noqa: E402
from tests.ranks import on_jax  # noqa: E402

ROWS = 4
"""Rows of a rank's batch."""


def data(ranks, steps):
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((steps, ranks, ROWS, 5)).astype(np.float32)
    return x, np.tanh(x[..., :1] * x[..., 1:2] + x[..., 2:3])


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) - y) ** 2)


def train(optimizer, batches, extra):
    """Return the parameters after a step for each batch. `extra`: creates arguments of value, gradients, x and y."""

    @jax.jit
    def step(params, state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state, params, **extra(value, grads, x, y))
        return optax.apply_updates(params, updates), state

    params = {"w": jnp.linspace(-1, 1, 5)[:, None], "b": jnp.zeros(1)}
    state = optimizer.init(params)
    for x, y in batches:
        params, state = step(params, state, x, y)
    return jax.tree.map(np.asarray, params)


def of_value(value, grads, x, y):
    return {"value": value}


def of_line_search(value, grads, x, y):
    return {"value": value, "grad": grads, "value_fn": loss, "x": x, "y": y}


def of_objective(value, grads, x, y):
    return {"obj_fn": lambda params: loss(params, x, y)}


def of_gradients(value, grads, x, y):
    return {"grad_fn": lambda params, _: jax.grad(loss)(params, x, y)}


def plateau():
    return optax.chain(optax.sgd(0.5), optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=0.2))


def line_search(**options):
    return optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(max_backtracking_steps=8, **options))


CASES = {
    "reduce_on_plateau": (plateau, of_value),
    "lbfgs": (optax.lbfgs, of_line_search),
    "backtracking, forwards": (lambda: line_search(store_grad=True), of_line_search),
    "sophia": (lambda: optax.contrib.sophia(0.05, update_interval=1), of_objective),
    "sam": (lambda: optax.contrib.sam(optax.sgd(0.05), optax.sgd(0.05), opaque_mode=True), of_gradients),
    "masked": (lambda: optax.chain(optax.masked(plateau(), {"w": True, "b": False}), optax.sgd(1.0)), of_value),
}


SLOW = ("lbfgs", "backtracking, forwards", "sophia", "masked")


@pytest.mark.heavy
@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.heavy] * (case in SLOW)) for case in CASES])
def test_loss_dependent_transformations_equal_one_process(jax_pool, case):
    make, extra = CASES[case]
    x, y = data(2, steps=4)

    def work():
        own = zip(x[:, hvd.rank()], y[:, hvd.rank()], strict=True)
        return train(hvd.DistributedOptimizer(make()), own, extra)

    alone = train(make(), [(one.reshape(-1, 5), two.reshape(-1, 1)) for one, two in zip(x, y, strict=True)], extra)
    first, second = jax_pool(2).run(work)
    for name, expected in alone.items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], expected, rtol=2e-3, atol=1e-4)


@pytest.mark.heavy
def test_losses_are_weighted_as_gradients_are(jax_pool):
    """Rank 0 has one row, rank 1 three."""
    x, y = data(1, steps=4)
    parts = slice(0, 1), slice(1, 4)

    def work():
        part, weight = parts[hvd.rank()], 1 + 2 * hvd.rank()
        optimizer = hvd.DistributedOptimizer(line_search())

        def extra(*args):
            return {"weight": weight, **of_line_search(*args)}

        own = [(one[0, part], two[0, part]) for one, two in zip(x, y, strict=True)]
        return train(optimizer, own, extra)

    alone = train(line_search(), [(one[0], two[0]) for one, two in zip(x, y, strict=True)], of_line_search)
    first, second = jax_pool(2).run(work)
    for name, expected in alone.items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], expected, rtol=2e-3, atol=1e-4)


def test_several_passes_reduce_the_last_loss(jax_pool):
    x, y = data(2, steps=6)

    def work():
        optimizer = hvd.DistributedOptimizer(plateau(), backward_passes_per_step=2)
        return train(optimizer, zip(x[:, hvd.rank()], y[:, hvd.rank()], strict=True), of_value)

    first, second = jax_pool(2).run(work)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_functions_without_a_loss_reduction_are_refused(jax_pool):
    x, y = data(1, steps=1)

    def work():
        with pytest.raises(ValueError, match=r"value_fn requires op=Average or op=Sum, got op=Max"):
            train(hvd.DistributedOptimizer(line_search(), op=hvd.Max), [(x[0, 0], y[0, 0])], of_line_search)

    jax_pool(2).run(work)


def lowered(optimizer, extra=of_value):
    """Return the text of a program that makes one update."""
    params = {"w": jnp.ones((5, 1)), "b": jnp.zeros(1)}

    def step(state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return optimizer.update(grads, state, params, **extra(value, grads, x, y))

    return jax.jit(step).lower(optimizer.init(params), jnp.ones((4, 5)), jnp.ones((4, 1))).as_text()


@on_jax(2)
def test_reduced_values_are_not_sent_again():
    optimizer = hvd.DistributedOptimizer(optax.lbfgs(0.1, linesearch=None))
    same, other, none, constant = [
        lowered(optimizer, lambda value, grads, x, y: {"value": value, "grad": grads}),
        lowered(optimizer, lambda value, grads, x, y: {"grad": jax.tree.map(lambda g: 2 * g, grads)}),
        lowered(hvd.DistributedOptimizer(optax.scale(-1.0))),
        lowered(optimizer, lambda value, grads, x, y: {"value": 1.0}),
    ]
    assert "extra.value" in same
    assert "extra.grad" not in same
    assert same.count("custom_call @horovod_collective") == 1  # together with the gradients
    assert "extra.grad" in other
    assert "extra" not in none
    assert "extra.value" in constant


@on_jax(2)
def test_steps_are_counted_in_front_of_branches_only():
    distributed = hvd.DistributedOptimizer(optax.sgd(0.1))
    assert [
        lowered(optimizer).count("numbers = array<i32: -2,")
        for optimizer in (
            distributed,
            optax.MultiSteps(distributed, 2).gradient_transformation(),
            optax.apply_if_finite(optax.apply_if_finite(distributed, 3), 3),
            hvd.DistributedOptimizer(optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation()),
            hvd.DistributedOptimizer(optax.sgd(0.1), backward_passes_per_step=2),
        )
    ] == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("inner_function", [False, True])
def test_a_step_skipped_on_one_rank_fails_the_next_exchange(jax_pool, inner_function):
    x, y = data(2, steps=4)
    x[1, 0] = np.nan  # rank 0 skips the second step

    def work():
        distributed = hvd.DistributedOptimizer(optax.sgd(0.1), name="lost")
        if inner_function:
            update = jax.jit(distributed.update)
            distributed = optax.GradientTransformation(distributed.init, lambda g, s, p=None: update(g, s, p))
        around = optax.apply_if_finite(distributed, 5)
        try:
            train(around, zip(x[:, hvd.rank()], y[:, hvd.rank()], strict=True), lambda *_: {})
        except (HorovodInternalError, RuntimeError, ValueError) as error:
            return str(error)
        return "no error"

    for rank, text in enumerate(jax_pool(2).run(work, fresh=True)):
        assert (
            f"lost.step: ranks exchange gradients of different steps, from 2 to 3, this rank of step {3 - rank}" in text
        )
