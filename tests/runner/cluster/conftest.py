"""Fixtures for jobs whose agents call home."""

import pytest

from horovod.runner.cluster import Gathering
from tests.runner.cluster.tasks import Tasks


@pytest.fixture
def tasks():
    with Tasks() as made:
        yield made


@pytest.fixture
def gathering():
    with Gathering("task") as made:
        yield made
