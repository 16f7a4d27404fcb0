"""Fixtures for jobs whose agents connect to the launcher."""

import pytest

from horovod.runner.cluster import Gathering
from tests.runner.cluster.tasks import Tasks


@pytest.fixture
def tasks():
    with Tasks() as tasks:
        yield tasks


@pytest.fixture
def gathering():
    with Gathering("task") as gathering:
        yield gathering
