"""The simulated driver under Python: arrays go there and back, and a program that leaves something behind is told."""

import os
import subprocess
import sys

import pytest

from tests.simulated import libraries

PROGRAM = """
import sys
import numpy as np
from tests.simulated.cuda.gpu import CudaError, Gpu
with Gpu(1) as gpu:
    stream = gpu.stream(priority=-1)
    data = np.arange(100000, dtype=np.float32)
    array = gpu.array(data, stream)
    assert array.__cuda_array_interface__["data"] == (array.address, False)
    assert (array.numpy() == data).all()
    gpu("cuMemsetD8Async", array.address, 0, 4, stream)
    assert (array.numpy()[:2] == [0, 1]).all()
    try:
        gpu("cuMemFree_v2", array.address + 512)
    except CudaError as error:
        assert error.code == 1
    if sys.argv[1] == "tidy":
        array.free()
        gpu("cuStreamDestroy_v2", stream)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["tidy", "untidy"])
def test_arrays_and_leaks(way: str) -> None:
    environment = os.environ | libraries.environment(devices=2, leaks=1)
    command = [sys.executable, "-c", PROGRAM, way]
    done = subprocess.run(command, env=environment, cwd=libraries.ROOT, timeout=60, capture_output=True, text=True)
    if way == "tidy":
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == -6
        assert "of 400000 bytes on device 1" in done.stderr
        assert "1 stream(s)" in done.stderr
