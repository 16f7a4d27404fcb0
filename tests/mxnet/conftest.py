"""Fixtures of the MXNet tests, which run in a separate environment (`make test-mxnet`).

Behaviour without MXNet is tested in tests/common/test_without_mxnet.py.
"""

import importlib.util
from collections.abc import Callable

import pytest

from tests.pool import MXNET, Fleets, Pool
from tests.single import fixture

if not importlib.util.find_spec("mxnet"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def pool(fleets: Fleets) -> Callable[..., Pool]:
    """pool(size, initialized=True, **environment) -> Pool, of workers that have imported horovod.mxnet."""
    return fleets.maker(MXNET)


single = fixture("horovod.mxnet")
