"""Fixtures of the Keras tests."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from tests.pool import Pool

OTHERS = [pytest.param(backend, marks=pytest.mark.heavy) for backend in ("torch", "jax")]
"""What only some backends do has tests of its own (test_torch_*, test_jax_*), and the conformance tests run on all."""


@pytest.fixture(params=["tensorflow", "torch", "jax"])
def each_keras3(
    request: pytest.FixtureRequest, keras_pool: Callable[[str], Callable[..., Pool]]
) -> Callable[..., Pool]:
    """each_keras3(size, **environment) -> Pool: each backend of Keras 3 in turn, for what they have adapters of."""
    return of_backend(request.param, keras_pool)


@pytest.fixture(params=["tensorflow", *OTHERS])
def keras3(request: pytest.FixtureRequest, keras_pool: Callable[[str], Callable[..., Pool]]) -> Callable[..., Pool]:
    """The same, with `make test` on one backend only."""
    return of_backend(request.param, keras_pool)


@pytest.fixture(params=["tensorflow", OTHERS[0]])
def stateful(request: pytest.FixtureRequest, keras_pool: Callable[[str], Callable[..., Pool]]) -> Callable[..., Pool]:
    """The same for the backends whose training changes variables, all but JAX."""
    return of_backend(request.param, keras_pool)


def of_backend(backend: str, keras_pool: Callable[[str], Callable[..., Pool]]) -> Any:
    if not importlib.util.find_spec(f"horovod._keras.backend_{backend}"):
        pytest.skip(f"the adapter for {backend} is not there yet")
    return keras_pool(backend)
