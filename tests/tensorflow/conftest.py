"""Fixtures of the TensorFlow tests."""

from collections.abc import Iterator

import pytest

import horovod.tensorflow as hvd


@pytest.fixture
def single() -> Iterator[None]:
    """A job of this process alone."""
    hvd.init()
    yield
    hvd.shutdown()
