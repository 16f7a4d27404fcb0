"""examples/elastic with `horovodrun`: a worker is killed and a slot is added, and the training succeeds."""

import re
import signal
import sys
from pathlib import Path

import pytest

from tests.later import need
from tests.runner.elastic.launched import elastic_job

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "elastic"
KINDS = {
    "pytorch": ("pytorch_digits.py", "torch", {}),
    "tensorflow": ("tensorflow2_digits.py", "tensorflow", {}),
    "keras-torch": ("keras_digits.py", "torch", {"KERAS_BACKEND": "torch"}),
    "keras-tensorflow": ("keras_digits.py", "tensorflow", {"KERAS_BACKEND": "tensorflow"}),
    "keras-jax": ("keras_digits.py", "jax", {"KERAS_BACKEND": "jax"}),
}


@pytest.mark.heavy
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] if kind != "pytorch" else []) for kind in KINDS]
)
def test_a_worker_is_killed_and_another_one_joins(tmp_path, kind):
    script, module, environment = KINDS[kind]
    needed = ("sklearn", module) if kind in ("pytorch", "tensorflow") else ("sklearn", "keras", module)
    need(*needed)
    flags = ("-np", "2", "--min-np", "1", "--max-np", "3", "--blacklist-cooldown-range", "1", "1")
    command = (*flags, sys.executable, str(FOLDER / script), "--epochs", "100000", "--pause", "0.01")
    variables = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    with elastic_job(tmp_path, "localhost:2", *command, environment=variables) as job:

        def epochs(size: int) -> int:
            return sum(bool(re.search(f"^.0.<stdout>:epoch .* {size} ranks", line)) for line in job.out)

        job.until(lambda: epochs(2) > 0, 120)
        job.kill("rank 1")
        job.until_line("rank 1 on host localhost failed: killed by signal 9 .*; 1 rank left$")
        # A new worker replaces it; then one more slot is added.
        count = epochs(2)
        job.until(lambda: epochs(2) > count, 120)
        job.hosts("localhost:3")
        job.until(lambda: epochs(3) > 0, 120)
        # A slot is removed; its worker ends without being blamed.
        job.hosts("localhost:2")
        count = epochs(2)
        job.until(lambda: epochs(2) > count, 120)
        # One rank is asked to stop, and all ranks do.
        job.kill("rank 0", signal.SIGUSR1)
        assert job.end(120) == 0, job.shown()
        assert sum("failed:" in line for line in job.err) == 1, job.shown()
        assert any("parameters identical on all 2 ranks" in line for line in job.out)
        (accuracy,) = [float(line.split()[3]) for line in job.out if "final held-out accuracy" in line]
        assert accuracy > 0.6
