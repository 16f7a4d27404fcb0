"""Jobs started by srun, and processes in an allocation that srun has not started."""

import re
import sys
import time
from pathlib import Path

import pytest

from tests.launchers.programs import DEADLINE, ROOT, WORKER, Done

# Slurm fills nodes of four CPUs differently: three tasks on two nodes become two and one.
TWO_AND_ONE = [([0, 2], [0, 2]), ([1, 2], [0, 1]), ([0, 1], [1, 2])]
KEY = "c3" * 32


def test_pmi(slurm_cluster):
    done = slurm_cluster.run("srun", "--mpi=pmi2", "-N2", "-n3", *WORKER)
    assert done.places() == TWO_AND_ONE
    assert all(each["mpi"] for each in done.all_ranks()), "hvd.mpi_enabled()"


def test_munge_without_pmi(slurm_cluster):
    assert slurm_cluster.run("srun", "-N2", "-n3", *WORKER).places() == TWO_AND_ONE


def test_key_of_the_user(slurm_cluster):
    done = slurm_cluster.run("srun", "-N2", "-n3", *WORKER, HOROVOD_JOB_KEY=KEY)
    assert done.places() == TWO_AND_ONE
    assert not any(each["key in environment"] for each in done.all_ranks())
    assert KEY not in done.text


def test_horovodrun_in_an_allocation_and_in_a_step(slurm_cluster):
    command = [sys.executable, "-m", "horovod.runner", "-np", "2", *WORKER]
    assert slurm_cluster.run("salloc", "-Q", "-N2", "-n4", *command).places() == [([0, 2], [0, 1]), ([1, 2], [0, 1])]
    assert slurm_cluster.run("srun", "-n1", *command).places() == [([0, 2], [0, 1]), ([1, 2], [0, 1])]


@pytest.mark.parametrize("options", [["--mpi=pmi2"], pytest.param([], marks=pytest.mark.heavy)], ids=["pmi", "munge"])
def test_a_rank_that_never_comes_is_named(slurm_cluster, options):
    options = [*options, "--kill-on-bad-exit=1", "--wait=5"]
    done = slurm_cluster.run("srun", *options, "-N2", "-n3", *WORKER, "absent:2", HOROVOD_START_TIMEOUT="8")
    assert done.code != 0
    assert "waited 8 s for rank 2 (of 3) to call hvd.init()" in done.text


def test_the_first_failure_is_named(slurm_cluster):
    done = slurm_cluster.run("srun", "-N2", "-n3", *WORKER, "raise:1")
    assert done.code != 0
    assert "ValueError: no more data" in done.text
    # srun does not stop the other ranks, so they report it too.
    assert "rank 1 (host n" in done.text
    assert "has left the job: it ended with ValueError: no more data (in finish, worker.py:" in done.text


TRAIN = f"""
import os, runpy, sys
assert os.environ["OMP_NUM_THREADS"] == "2"
sys.argv[1:] = os.environ.get("WORDS", "").split()
runpy.run_path({WORKER[1]!r}, run_name="__main__")
"""


def end_of_batch_job(cluster, submitted):
    """Return (state, log) of a batch job once it has ended."""
    job = re.search(r"Submitted batch job (\d+)", submitted.text)
    assert job, submitted.text
    deadline = time.monotonic() + DEADLINE
    while True:
        shown = cluster.run("scontrol", "show", "job", job[1]).text
        state = re.search(r"JobState=(\w+)", shown)[1]
        log = Path(re.search(r"StdOut=(\S+)", shown)[1])
        if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            return state, log.read_text()
        assert time.monotonic() < deadline, (shown, log.read_text() if log.exists() else "no log")
        time.sleep(0.5)


def test_the_batch_file_of_the_documentation(slurm_cluster, tmp_path):
    """Run it unchanged in a directory with an environment .venv and a train.py: one job succeeds, one fails."""
    page = (ROOT / "docs/launchers/slurm.md").read_text()
    (file,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
    (tmp_path / "train.sbatch").write_text(file)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    submit = ["sbatch", f"--chdir={tmp_path}", str(tmp_path / "train.sbatch")]
    good, bad = slurm_cluster.run(*submit), slurm_cluster.run(*submit, WORDS="raise:3")
    state, log = end_of_batch_job(slurm_cluster, good)
    assert state == "COMPLETED", log
    assert Done(0, log).places() == [([local, 2], [cross, 2]) for cross in range(2) for local in range(2)]
    state, log = end_of_batch_job(slurm_cluster, bad)
    assert state == "FAILED", log
    assert re.search(r"(?m)^[012]: .*rank 3 \(host \S+, pid \d+\) has left the job: it ended with ValueError", log), log
