"""After a recovery the optimizer finds the same gradients as in a run without failures.

Zeros or None, as the program cleared them.
"""

import pytest
import torch

import horovod.torch as hvd
from horovod.common.elastic import run_fn
from horovod.torch.elastic.handlers import handler_for
from horovod.torch.elastic.taken_steps import Steps

STEPS = 8
FAILS = 5
# Whether a program clears gradients before or after the step, and to zeros or None.
WAYS = [("before", False), ("before", True), ("after", False), ("after", True)]


class Layers(torch.nn.ModuleList):
    """Layers of which step k uses k % 3, so the third is first used in step 2 and the fourth never.

    The last layer counts forward passes.
    """

    def forward(self, step: int) -> torch.Tensor:
        self[4](torch.ones(2, 1, dtype=torch.float64))
        return self[step % 3](torch.ones(1, 3, dtype=torch.float64))


def layers() -> Layers:
    torch.manual_seed(1)
    return Layers([*(torch.nn.Linear(3, 1) for _ in range(4)), torch.nn.BatchNorm1d(1, affine=False)]).double()


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def one_step(model: Layers, optimizer: torch.optim.Optimizer, step: int, variant: tuple[str, bool]) -> None:
    when, set_to_none = variant
    if when == "before":
        optimizer.zero_grad(set_to_none=set_to_none)
    model(step).sum().backward()
    optimizer.step()
    if when == "after":
        optimizer.zero_grad(set_to_none=set_to_none)


def loses_a_rank(variant: tuple[str, bool], at: str):
    """The last rank leaves in step FAILS before the reduction of gradients or of a metric.

    Return the largest difference from a run without a failure.
    """
    hvd.init()
    world = hvd.rank()
    model = layers()
    optimizer = hvd.DistributedOptimizer(optimizer_of(model), named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0)

    def train(state):
        while state.step < STEPS:
            if state.step % 3 == 0:
                state.commit()
            if world == 1 and state.step == FAILS and at == "gradients":
                hvd.shutdown()
                return False
            one_step(model, optimizer, state.step, variant)
            if state.step == FAILS and at == "metric":
                if world == 1:
                    hvd.shutdown()
                    return False
                hvd.allreduce(torch.ones(1), name="metric")
            state.step += 1
        return True

    def reset():
        hvd.shutdown()
        hvd.init([0])

    stayed = run_fn(train, reset)(state)
    hvd.shutdown()
    if not stayed:
        return None
    assert model[4].num_batches_tracked == STEPS, "the forward pass of the step that failed does not count"
    expected = layers()
    plain = optimizer_of(expected)
    for step in range(STEPS):
        one_step(expected, plain, step, variant)
    return max(
        (got - target).abs().max().item() for got, target in zip(model.parameters(), expected.parameters(), strict=True)
    )


@pytest.mark.parametrize("at", ["gradients", "metric"])
@pytest.mark.parametrize("variant", WAYS, ids=lambda variant: f"{variant[0]}-{'none' if variant[1] else 'zeros'}")
def test_training_continues_as_without_a_failure(pool, variant, at):
    difference, _ = pool(2, initialized=False).run(loses_a_rank, variant, at)
    assert difference < 1e-12


def joins(variant: tuple[str, bool]):
    """Rank 1 is new: rank 0 has taken three steps before it joins."""
    model = layers()
    optimizer = optimizer_of(model)
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    if hvd.rank() == 0:
        state._synced = True
        for state.step in range(3):
            one_step(model, optimizer, state.step, variant)
    state.sync()
    assert state.step == 2
    found = [p.grad is not None for p in model.parameters()]
    zeros = all(p.grad.abs().sum() == 0 for p in model.parameters() if p.grad is not None)
    return found, zeros


def test_new_ranks_get_the_gradient_kinds_of_others(pool):
    before, zeros = pool(2).run(joins, ("before", False))
    assert before == zeros == ([True] * 6 + [False] * 2, True)
    none, also_none = pool(2).run(joins, ("after", True))
    assert none == also_none == ([False] * 8, True)


def test_sparse_gradients_stay_sparse_and_parameters_added_later_have_none():
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    steps = Steps()
    steps.watch([optimizer])
    table(torch.tensor([1])).sum().backward()
    kinds = steps.gradients()
    added = torch.nn.Parameter(torch.ones(1))
    added.grad = torch.ones(1)
    optimizer.add_param_group({"params": [added]})
    for _ in range(2):  # with a gradient, as on a continuing rank, and without, as on a new rank
        steps.reset_gradients(kinds)
        assert table.weight.grad.is_sparse
        assert table.weight.grad.to_dense().abs().sum() == 0
        assert added.grad is None
        table.weight.grad = None


def test_a_scaler_repeats_a_failed_step():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    handler = handler_for("scaler", scaler)
    handler.restore()  # before the first step
    for fails in (False, True, False):
        scaler.scale(parameter.sum()).backward()
        scaler.unscale_(optimizer)
        assert parameter.grad.tolist() == [1.0, 1.0]
        if fails:
            handler.restore()
        else:
            scaler.step(optimizer)
            scaler.update()
            handler.save()
        optimizer.zero_grad()
    assert (scaler.get_scale(), scaler.state_dict()["_growth_tracker"]) == (8.0, 2)
