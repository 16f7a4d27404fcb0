"""Averaged or scaled integers do not overflow; unsupported dtypes are rejected where arithmetic is needed."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks

LARGE = {torch.uint8: 200, torch.int8: 100, torch.int16: 30000, torch.uint16: 60000, torch.int32: 2 * 10**9}
LARGE[torch.int64] = 2**62


@on_ranks(3)
def test_averages_and_scaled_sums():
    n, me = hvd.size(), hvd.rank()
    scaled = {"op": hvd.Sum, "postscale_factor": 1 / n}
    for dtype, value in LARGE.items():
        one = torch.tensor([value + me], dtype=torch.int64).to(dtype)
        results = {
            "allreduce": hvd.allreduce(one),
            "in place": hvd.allreduce_(one.clone()),
            "large": hvd.allreduce(one.expand(300_000).contiguous())[-1:],
            "grouped": hvd.grouped_allreduce([one, one])[1],
            "reducescatter": hvd.reducescatter(one.expand(n).contiguous()),
            "grouped reducescatter": hvd.grouped_reducescatter([one.expand(n).contiguous()])[0],
            "scaled": hvd.allreduce(one, **scaled),
            "prescaled": hvd.allreduce(one, op=hvd.Sum, prescale_factor=1 / n),
        }
        for case, result in results.items():
            assert result.dtype is dtype
            assert value - 1 <= int(result) <= value + n, (case, dtype, result)
    assert hvd.allreduce(torch.tensor([-1 if me else 0])).tolist() == [0]  # -2/3, truncated
    counts = (torch.ones(2, 2, dtype=torch.uint8) * (200 + me)).to_sparse()
    average = hvd.sparse_allreduce_async(counts, name="counts", op=hvd.Average)().to_dense()
    assert average.dtype is torch.uint8
    assert average.tolist() == [[200 + (n - 1) // 2] * 2] * 2


@on_ranks(2)
def test_parameters_whose_gradients_cannot_be_reduced():
    for dtype in (torch.complex64, torch.float8_e4m3fn):
        p = torch.nn.Parameter(torch.ones(3).to(dtype))
        plain = torch.nn.Parameter(torch.ones(3))
        for parameters, message in (([plain, p], "parameter 'b': the dtype must be"), ([plain], None)):
            named = list(zip("ab", parameters, strict=False))
            optimizer = torch.optim.SGD(parameters, lr=0.1)
            if message:
                with pytest.raises(ValueError, match=message):
                    hvd.DistributedOptimizer(optimizer, named)
                continue
            optimizer = hvd.DistributedOptimizer(optimizer, named)
            with pytest.raises(ValueError, match="the dtype must be"):
                optimizer.add_param_group({"params": [p]})
            assert len(optimizer.param_groups) == 1
    frozen = torch.nn.Parameter(torch.ones(3).cfloat(), requires_grad=False)
    hvd.DistributedOptimizer(torch.optim.SGD([plain, frozen], lr=0.1))
