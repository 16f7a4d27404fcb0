"""Rules for reducing gradients that all frontends share."""

import math

import pytest

from horovod.common.ops import Average, Sum
from horovod.common.training_loop import gradients


@pytest.mark.parametrize("factor", [0, -1.0, math.nan, math.inf, True, "2", None])
def test_invalid_predivide_factors(factor):
    with pytest.raises(ValueError, match="gradient_predivide_factor must be a finite number above 0"):
        gradients.check_predivide(factor, Average)


def test_predivide_factors_require_averages():
    assert gradients.check_predivide(4, Average) == 4.0
    assert gradients.scales(4.0) == (0.25, 4.0)
    with pytest.raises(ValueError, match=r"must be 1\.0 unless op is Average, got 4 with op=Sum"):
        gradients.check_predivide(4, Sum)


@pytest.mark.parametrize("count", [1, 3, 7, 100])
def test_no_part_is_empty(count):
    parts = gradients.parts(range(7), count)
    assert [one for part in parts for one in part] == list(range(7))
    assert len(parts) == min(count, 7)
    assert all(parts)
    assert gradients.parts([], count) == []
