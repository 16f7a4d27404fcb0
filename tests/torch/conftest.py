"""Fixtures of the PyTorch tests."""

from collections.abc import Iterator

import pytest
import torch

import horovod.torch as hvd


@pytest.fixture
def single() -> Iterator[None]:
    """A job of this process alone."""
    torch.set_num_threads(1)
    hvd.init()
    yield
    hvd.shutdown()
