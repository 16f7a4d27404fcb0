"""The cases of all faces (tests/conformance). In docs/faces.md is no column for them: MXNet has an environment of its
own."""

import pytest

pytest.importorskip("ml_dtypes")

from tests.conformance.cases import SIZES
from tests.conformance.test_conformance import conform


@pytest.mark.parametrize("size", SIZES)
def test_it_does_what_all_faces_do(fleets, size):
    conform(fleets, "mxnet", size)
