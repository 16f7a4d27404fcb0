"""Fixtures of the Keras tests."""

from collections.abc import Callable

import pytest

from tests.pool import Pool

Maker = Callable[..., Pool]
Pools = Callable[[str], Maker]
HEAVY = {backend: pytest.param(backend, marks=pytest.mark.heavy) for backend in ("torch", "jax")}
"""Backends whose specific code has its own tests (test_torch_*, test_jax_*); the conformance suite runs on all."""


@pytest.fixture(params=["tensorflow", *HEAVY.values()])
def keras3(request: pytest.FixtureRequest, keras_pool: Pools) -> Maker:
    """keras3(size, initialized=True, **environment) -> Pool, for each backend of Keras 3."""
    return keras_pool(request.param)


@pytest.fixture(params=["tensorflow", *(pytest.param(name, marks=pytest.mark.smoke) for name in HEAVY)])
def smoke_keras3(request: pytest.FixtureRequest, keras_pool: Pools) -> Maker:
    """Like ``keras3``, for the one test of each backend that the first tier runs."""
    return keras_pool(request.param)


@pytest.fixture(params=["tensorflow", HEAVY["torch"]])
def stateful(request: pytest.FixtureRequest, keras_pool: Pools) -> Maker:
    """Like ``keras3``, for the backends whose training changes variables: all but JAX."""
    return keras_pool(request.param)
