"""Fixtures for all Python tests."""

from collections.abc import Callable, Iterator

import pytest

from tests.pool import Fleet, Pool


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
