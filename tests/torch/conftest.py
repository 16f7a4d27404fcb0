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
def gpus(pool: Callable[..., Pool], simulated_cuda: Path) -> Callable[..., Pool]:
    """gpus(size, initialized=True, **environment) -> Pool of ranks on a simulated GPU."""
    library = {"HOROVOD_CUDA_LIBRARY": str(simulated_cuda)}
    return lambda size, initialized=True, **environment: pool(size, initialized, **library, **environment)


class GpuPool:
    """A pool in which PyTorch computes on the simulated GPU."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def run(
        self, function: Callable[..., Any], *args: Any, timeout: float | None = None, fresh: bool = False, **kwargs: Any
    ) -> list[Any]:
        return self._pool.run(_with_gpu, function, args, kwargs, timeout=timeout or 60.0, fresh=fresh)


@pytest.fixture
def gpu_ranks(gpus: Callable[..., Pool]) -> Callable[..., GpuPool]:
    """gpu_ranks(size, initialized=True, **environment) -> GpuPool."""
    return lambda size, initialized=True, **environment: GpuPool(gpus(size, initialized, **environment))


def _with_gpu(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    from tests.torch import simulated_gpu

    with simulated_gpu.present():
        return function(*args, **kwargs)


@pytest.fixture
def single() -> Iterator[None]:
    """A single-rank job in the test process."""
    torch.set_num_threads(1)
    hvd.init()
    yield
    hvd.shutdown()
