"""A PyTorch worker of an elastic job; says what it does on stdout. Arguments: how many
ranks there are to be, one number after the other; it ends 20 steps after the last."""

import itertools
import sys
import time
from typing import Any

import torch

import horovod.torch as hvd

# Else sums in another order grow over some hundred steps to what a mistake would be.
torch.set_default_dtype(torch.float64)


def say(*words: Any) -> None:
    print(time.monotonic(), *words, flush=True)


def model_of(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def loss_of(model: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    data, target = torch.randn(6, 4, generator=generator), torch.randn(6, 2, generator=generator)
    return torch.nn.functional.mse_loss(model(data), target)


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def alone(sizes: list[int]) -> list[torch.Tensor]:
    """The parameters after a step of so many ranks each, computed by one process."""
    model = model_of(0)
    optimizer = optimizer_of(model)
    for step, size in enumerate(sizes):
        optimizer.zero_grad()
        for rank in range(size):
            (loss_of(model, step, rank) / size).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def is_over(sizes: list[int], wanted: list[int]) -> bool:
    return [size for size, _ in itertools.groupby(sizes)] == wanted and sizes[-20:] == wanted[-1:] * 20


@hvd.elastic.run
def train(state: Any, wanted: list[int]) -> None:
    say("begins", state.step, hvd.rank(), hvd.size())
    while not is_over(state.sizes, wanted):
        state.check_host_updates()
        state.optimizer.zero_grad()
        loss_of(state.model, state.step, hvd.rank()).backward()
        state.optimizer.step()
        state.sizes.append(hvd.size())
        state.step += 1
        say("step", state.step)
        time.sleep(0.01)


def main() -> None:
    hvd.init()
    model = model_of(hvd.rank())
    optimizer = hvd.DistributedOptimizer(optimizer_of(model), named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0, sizes=[])
    train(state, [int(word) for word in sys.argv[1:]])
    expected = alone(state.sizes)
    for got, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-9)
    say("ends", state.step)


if __name__ == "__main__":
    main()
