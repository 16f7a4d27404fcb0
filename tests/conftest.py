"""Fixtures for all Python tests."""

import importlib.metadata
import importlib.util
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pool import JAX, KERAS, PLAIN, TENSORFLOW, Fleets, Pool
from tests.simulated import libraries
from tests.testbed import hosts as testbed
from tests.testbed.cluster import Cluster

# Plugins that select tests, order them, run them in parallel, and report on them at the end.
pytest_plugins = ("tests.lanes", "tests.quick", "tests.skips", "tests.slowest", "tests.tiers")

# Jobs that fail on purpose write their reports and dumps to a folder that the session removes.
_reports = tempfile.TemporaryDirectory(prefix="horovod-reports-")
os.environ["HOROVOD_REPORT_DIR"] = _reports.name
# Ignore any calibration stored on this machine.
os.environ["HOROVOD_CALIBRATE"] = "0"
# Shells start background programs with SIGINT ignored, nohup with SIGHUP, and child processes would inherit
# that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# For the test session's own process, which only imports the frameworks to collect their tests.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if importlib.util.find_spec("hypothesis"):  # environments that run one framework's tests lack it
    import hypothesis

    # Use the same examples in each run, without a time limit for one example, because machines may be busy.
    hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, database=None, max_examples=50)
    hypothesis.settings.load_profile("tests")


@pytest.fixture(scope="session")
def fleets() -> Iterator[Fleets]:
    fleets = Fleets()
    yield fleets
    fleets.close()


@pytest.fixture
def pool(fleets: Fleets) -> Callable[..., Pool]:
    """pool(size, initialized=True, **environment) -> Pool; in tests/torch the workers have imported PyTorch."""
    return fleets.maker(PLAIN)


@pytest.fixture
def tf_pool(fleets: Fleets) -> Callable[..., Pool]:
    """Like ``pool``, with workers that have imported TensorFlow; Keras is Keras 3 on TensorFlow."""
    return fleets.maker(TENSORFLOW)


@pytest.fixture
def jax_pool(fleets: Fleets) -> Callable[..., Pool]:
    """Like ``pool``, with workers that have imported JAX for the CPU."""
    return fleets.maker(JAX)


@pytest.fixture
def keras_pool(fleets: Fleets) -> Callable[[str], Callable[..., Pool]]:
    """keras_pool(backend)(size, initialized=True, **environment) -> Pool.

    ``backend`` is "tensorflow", "torch", "jax", or "legacy" for Keras 2, which is tf.keras or tf_keras. Skips the
    test if the backend is not installed.
    """

    def of(backend: str) -> Callable[..., Pool]:
        keras3 = int(importlib.metadata.version("keras").split(".")[0]) >= 3
        module = {"legacy": "tf_keras" if keras3 else "tensorflow"}.get(backend, backend)
        if not importlib.util.find_spec(module):
            pytest.skip(f"{module} is not installed")
        if backend != "legacy" and not keras3:
            pytest.skip("Keras 3 is not installed")
        return fleets.maker(KERAS[backend])

    return of


@pytest.fixture(scope="session")
def simulated_cuda() -> Path:
    """Path of the simulated CUDA driver, for HOROVOD_CUDA_LIBRARY.

    It comes from the build of the C++ unit tests if there is one, and is built otherwise.
    """
    return libraries.folder() / "libcuda.so.1"


@pytest.fixture(scope="session")
def bed() -> Iterator[Cluster]:
    """Four hosts made of namespaces (host1 ... host4) and a launch machine.

    Tests use them through ``cluster``. Skips the test if this machine cannot create such hosts.
    """
    if reason := testbed.obstacle():
        pytest.skip(reason)
    cluster = Cluster(4)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(bed: Cluster) -> Iterator[Cluster]:
    """The four hosts, reset after each test."""
    yield bed
    bed.reset()
