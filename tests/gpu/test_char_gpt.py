"""The example with 1, 2 and 4 ranks on a GPU: the loss is that of the CPU, and all ranks hold the same weights."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gpu.device import DEVICE

PROGRAM = Path(__file__).parents[2] / "examples/pytorch/char_gpt.py"
SMALL = "--layers 2 --width 64 --context 32 --corpus 200000 --steps 40 --log-every 20 --save-every 40 --no-progress"


def losses(size, device, folder):
    command = [sys.executable, "-m", "horovod.runner", "-np", str(size), sys.executable, str(PROGRAM), *SMALL.split()]
    folder.mkdir()
    done = subprocess.run([*command, "--device", device], cwd=folder, capture_output=True, text=True, timeout=100)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert f"parameters identical on all {size} ranks" in said
    steps = [float(x) for x in re.findall(r"step +\d+/40  loss ([\d.]+)", said)]
    final = re.search(r"final held-out loss ([\d.]+)", said)
    assert final, said[-4000:]
    return [*steps, float(final[1])]


@pytest.mark.usefixtures("computing")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_loss_is_that_of_the_cpu(size, tmp_path):
    with ThreadPoolExecutor() as both:
        places = [("cpu", tmp_path / "cpu"), (DEVICE, tmp_path / "gpu")]
        on_cpu, on_gpu = both.map(lambda place: losses(size, *place), places)
    print(f"{size} ranks: {on_cpu} on the CPU, {on_gpu} on the GPU")
    assert on_gpu == pytest.approx(on_cpu, abs=0.02)
    assert on_gpu[-1] < on_gpu[0] - 0.5  # it learned
