"""Process groups for tests, and what their collectives must return."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

import horovod.torch as hvd

STEPS = 3


@contextlib.contextmanager
def default_group(seconds: float = 60.0) -> Iterator[None]:
    """Run the body with a default process group of all ranks."""
    dist.init_process_group("hvd", init_method="hvd://", timeout=timedelta(seconds=seconds))
    try:
        yield
    finally:
        dist.destroy_process_group()
        assert hvd.is_initialized()


def values(rank: int, dtype: torch.dtype, count: int = 6) -> torch.Tensor:
    """Return what a rank contributes: small numbers that every dtype represents, in every order of rank different."""
    numbers = torch.tensor([(3 * index + 2 * rank) % 5 + 1 for index in range(count)])
    if dtype is torch.bool:
        return numbers % 2 == rank % 2
    if dtype.is_complex:
        return torch.complex(numbers.float(), numbers.flip(0).float()).to(dtype)
    return numbers.to(dtype)


def all_values(size: int, dtype: torch.dtype, count: int = 6) -> list[torch.Tensor]:
    """Return the contributions of all ranks."""
    return [values(rank, dtype, count) for rank in range(size)]


def network(unused=False):
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    if unused:
        layers.register_module("unused", torch.nn.Linear(2, 2))
        layers.forward = lambda x: layers[2](layers[1](layers[0](x)))
    return layers


def batches(size):
    torch.manual_seed(2)
    return [torch.randn(4 * size, 6) for _ in range(STEPS)]


def train(model, part):
    """Train on the rows that ``mine`` selects, and return the parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for rows in batches(hvd.size()):
        optimizer.zero_grad()
        model(rows[part]).square().mean().backward()
        optimizer.step()
    return [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]


def own_rows():
    return slice(4 * hvd.rank(), 4 * hvd.rank() + 4)


def close(got, expected):
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-5, atol=1e-6)
