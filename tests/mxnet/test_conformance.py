"""The conformance cases of all frontends (tests/conformance).

docs/frontends.md has no column for MXNet, which has a separate environment.
"""

import pytest

pytest.importorskip("ml_dtypes")

from tests.conformance.cases import SIZES
from tests.conformance.test_conformance import conform


@pytest.mark.parametrize("size", SIZES)
def test_mxnet_conforms(fleets, size):
    conform(fleets, "mxnet", size)
