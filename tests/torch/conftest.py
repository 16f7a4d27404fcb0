"""Fixtures of the PyTorch tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import horovod.torch as hvd
from tests.pool import TORCH, Fleets, Pool


@pytest.fixture
def pool(fleets: Fleets) -> Callable[..., Pool]:
    """pool(size, initialized=True, **environment) -> Pool."""
    return fleets.maker(TORCH)


@pytest.fixture
def gpu_ranks(pool: Callable[..., Pool], simulated_cuda: Path) -> Callable[..., Any]:
    """gpu_ranks(size, **environment)(function, *args) -> results by rank, of ranks that have a simulated GPU each, on
    which PyTorch computes."""

    def of(size: int, **environment: str) -> Callable[..., Any]:
        ranks = pool(size, HOROVOD_CUDA_LIBRARY=str(simulated_cuda), **environment)
        return lambda function, *args: ranks.run(_with_gpu, function, *args, timeout=60.0)

    return of


def _with_gpu(function: Callable[..., Any], *args: Any) -> Any:
    from tests.torch import simulated_gpu

    with simulated_gpu.present():
        return function(*args)


@pytest.fixture
def single() -> Iterator[None]:
    """A job of this process alone."""
    torch.set_num_threads(1)
    hvd.init()
    yield
    hvd.shutdown()
