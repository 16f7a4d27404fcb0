"""The job that scripts/test-wheels.sh runs on two workers in an environment with an installed wheel."""

import ctypes
import sys
from pathlib import Path

import numpy as np

import horovod
import horovod.numpy as hvd
from horovod import _core

here = Path(horovod.__file__).parent
assert "site-packages" in str(here), f"{here} is not what was installed"
hvd.init()
rank, size = hvd.rank(), hvd.size()
assert size == 2, size
values = np.arange(100_000, dtype=np.float32)
np.testing.assert_array_equal(hvd.allreduce(values * (rank + 1), op=hvd.Sum), values * 3)
np.testing.assert_array_equal(hvd.broadcast(np.full(3, rank), root_rank=1), [1, 1, 1])
np.testing.assert_array_equal(hvd.allgather(np.array([rank])), [0, 1])
assert hvd.allgather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
for library in ("tensorflow/_tf.so", "_jax/_jax.so", "mxnet/_mxnet.so"):
    ctypes.CDLL(str(here / library))  # they look for their framework on first use
hvd.shutdown()
gil = "on" if getattr(sys, "_is_gil_enabled", lambda: True)() else "off"
print(f"rank {rank}: Python {sys.version.split()[0]}, {Path(_core.__file__).name}, GIL {gil}: as expected")
