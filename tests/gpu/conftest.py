"""Fixtures of the tests on a GPU, which all ranks share."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.device import DEVICE, SIMULATED, obstacle
from tests.pool import TORCH, Fleets, Pool


class Ranks:
    """A Pool whose processes are replaced after a failure, because a failed GPU stays so for its process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 60.0, **options: Any) -> list[Any]:
        try:
            return self._pool.run(function, *args, timeout=timeout, **options)
        except BaseException:
            self.dismiss()
            raise

    def dismiss(self) -> None:
        """Start new processes for the next test."""
        self._pool.fleet.dismiss()


@pytest.fixture
def ranks(fleets: Fleets, request: pytest.FixtureRequest) -> Callable[..., Ranks]:
    """ranks(size, **environment) -> Ranks, on the available GPU, real or simulated."""
    if reason := obstacle():
        pytest.skip(reason)
    environment = {}
    if SIMULATED:
        environment["HOROVOD_CUDA_LIBRARY"] = str(request.getfixturevalue("simulated_cuda"))
    make = fleets.maker(TORCH)
    return lambda size, **more: Ranks(make(size, **environment, **more))


@pytest.fixture
def computing(ranks: Callable[..., Ranks]) -> Callable[..., Ranks]:
    """Like ``ranks``, for tests in which PyTorch computes on the GPU, or on the CPU in its place."""
    if SIMULATED:
        pytest.skip("PyTorch computes nothing on the simulated GPU")
    return ranks


@pytest.fixture
def cuda(computing: Callable[..., Ranks]) -> Callable[..., Ranks]:
    """Like ``ranks``, for tests of streams, memory and graphs."""
    if DEVICE == "cpu":
        pytest.skip("the CPU has no streams")
    return computing
