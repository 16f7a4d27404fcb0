"""Fixtures for all Python tests."""

import os
from collections.abc import Callable, Iterator

import pytest

from tests.pool import Fleet, Pool

# What somebody once calibrated on this machine is none of the tests' business.
os.environ["HOROVOD_CALIBRATE"] = "0"


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    made = Fleet()
    yield made
    made.close()


@pytest.fixture
def pool(fleet: Fleet) -> Callable[..., Pool]:
    """pool(size, initialized=True, **environment) -> Pool."""

    def make(size: int, initialized: bool = True, **environ: str) -> Pool:
        return Pool(fleet, size, tuple(sorted(environ.items())), initialized)

    return make
