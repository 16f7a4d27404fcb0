"""Fixtures of the tests of plain arrays."""

from collections.abc import Iterator

import pytest

import horovod.numpy as hvd


@pytest.fixture
def single() -> Iterator[None]:
    """A job of this process alone."""
    hvd.init()
    yield
    hvd.shutdown()
