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

# What a run leaves out, in which order and beside what the rest runs, and what is said of it at the end.
pytest_plugins = ("tests.lanes", "tests.quick", "tests.skips", "tests.slowest", "tests.tiers")

# Reports and dumps of jobs that are meant to fail go where the session leaves nothing.
_reports = tempfile.TemporaryDirectory(prefix="horovod-reports-")
os.environ["HOROVOD_REPORT_DIR"] = _reports.name
# What somebody once calibrated on this machine is none of the tests' business.
os.environ["HOROVOD_CALIBRATE"] = "0"
# Shells start programs in the background with SIGINT ignored, nohup with SIGHUP, and their children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# For the session itself, in which the tests of several frameworks are collected: it only imports them.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if importlib.util.find_spec("hypothesis"):  # environments that run one framework's tests alone do without
    import hypothesis

    # The same examples in each run, and no limit of time for one: the machines are busy.
    hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, database=None, max_examples=50)
    hypothesis.settings.load_profile("tests")


@pytest.fixture(scope="session")
def fleets() -> Iterator[Fleets]:
    made = Fleets()
    yield made
    made.close()


@pytest.fixture
def pool(fleets: Fleets) -> Callable[..., Pool]:
    """pool(size, initialized=True, **environment) -> Pool; in tests/torch the workers have imported PyTorch."""
    return fleets.maker(PLAIN)


@pytest.fixture
def tf_pool(fleets: Fleets) -> Callable[..., Pool]:
    """The same with workers that have imported TensorFlow; Keras is Keras 3 on TensorFlow."""
    return fleets.maker(TENSORFLOW)


@pytest.fixture
def jax_pool(fleets: Fleets) -> Callable[..., Pool]:
    """The same with workers that have imported JAX, for the CPU."""
    return fleets.maker(JAX)


@pytest.fixture
def keras_pool(fleets: Fleets) -> Callable[[str], Callable[..., Pool]]:
    """keras_pool(backend)(size, initialized=True, **environment) -> Pool; backend: "tensorflow", "torch", "jax", or
    "legacy" for Keras 2, where tf.keras is that or tf_keras. Skips the test where that is not installed."""

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
    """The simulated CUDA driver, for HOROVOD_CUDA_LIBRARY: that of the C++ unit tests' build, or one built now."""
    return libraries.folder() / "libcuda.so.1"


@pytest.fixture(scope="session")
def bed() -> Iterator[Cluster]:
    """Four hosts made of namespaces (host1 ... host4), and a desk; tests take them through `cluster`. Skips the test
    where such hosts cannot be made."""
    if reason := testbed.why_not():
        pytest.skip(reason)
    made = Cluster(4)
    yield made
    made.close()


@pytest.fixture
def cluster(bed: Cluster) -> Iterator[Cluster]:
    """The four hosts, put in order again after the test whatever it did to them."""
    yield bed
    bed.reset()
