"""Fixtures of the PyTorch tests."""

from collections.abc import Callable, Iterator

import pytest
import torch

import horovod.torch as hvd
from tests.pool import TORCH, Fleets, Pool


@pytest.fixture
def pool(fleets: Fleets) -> Callable[..., Pool]:
    """pool(size, initialized=True, **environment) -> Pool."""
    return fleets.maker(TORCH)


@pytest.fixture
def single() -> Iterator[None]:
    """A job of this process alone."""
    torch.set_num_threads(1)
    hvd.init()
    yield
    hvd.shutdown()
