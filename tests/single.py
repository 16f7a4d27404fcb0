"""A job of the process that runs the tests, alone."""

import importlib
from collections.abc import Iterator

import pytest


def fixture(module: str) -> object:
    """Return a fixture named ``single``, within which a frontend is initialised."""

    @pytest.fixture
    def single() -> Iterator[None]:
        hvd = importlib.import_module(module)
        hvd.init()
        yield
        hvd.shutdown()

    return single
