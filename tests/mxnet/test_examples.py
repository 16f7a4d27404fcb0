"""The example, run as a user would: through horovodrun, from another folder."""

import re
import sys

from tests.runner.launching import ROOT, run_job

DIGITS = ROOT / "examples/mxnet/digits.py"


def launch(folder, script):
    """Return the script's stdout on two workers."""
    done = run_job(["-np", "2", sys.executable, str(script)], environment={"OMP_NUM_THREADS": "1"}, cwd=folder)
    assert done.code == 0, f"{done.out[-3000:]}\n{done.err[-3000:]}"
    return done.out


def test_digits_learns(tmp_path):
    out = launch(tmp_path, DIGITS)
    found = re.search(r"final held-out accuracy ([\d.]+) on 360 images", out)
    assert found, out
    assert float(found[1]) >= 0.95
    assert re.search(r"parameters identical on all 2 ranks: sha256 [0-9a-f]{16}", out), out
    losses = [float(loss) for loss in re.findall(r"epoch +\d+/12  loss ([\d.]+)", out)]
    assert len(losses) == 12
    assert losses[-1] < losses[0] / 4
