"""Arrays of CuPy: no copies, and streams in order."""

import pytest
import torch

import horovod.torch as hvd


def of_cupy():
    import cupy

    n, me = hvd.size(), hvd.rank()
    side = cupy.cuda.Stream(non_blocking=True)
    for step in range(20):
        with side:
            torch.cuda._sleep(1_000_000)  # on PyTorch's stream: delays the result
            x = cupy.full(1 << 20, float(me + step), dtype=cupy.float32)
            y = hvd.allreduce(x, op=hvd.Sum, name="new")
            assert isinstance(y, cupy.ndarray)
            assert hvd.allreduce_(x, op=hvd.Sum, name="same") is x
            handle = hvd.allreduce_async(x, op=hvd.Average, name="later")
            rows = hvd.allgather(x[:4], name="rows")
            z = hvd.synchronize(handle)
            total = n * step + n * (n - 1) / 2
            assert float(y.min()) == float(x.max()) == float(z.max()) == total
            assert rows.tolist() == [total] * 4 * n


@pytest.mark.parametrize("size", [1, 2])
def test_cupy_arrays(cuda, size):
    pytest.importorskip("cupy")
    cuda(size).run(of_cupy)
