"""A single-rank job in the test process itself."""

import importlib
from collections.abc import Iterator

import pytest


def fixture(module: str) -> object:
    """Return a fixture named ``single`` that initializes a frontend around each test."""

    @pytest.fixture
    def single() -> Iterator[None]:
        hvd = importlib.import_module(module)
        hvd.init()
        yield
        hvd.shutdown()

    return single
