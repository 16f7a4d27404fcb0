"""Whole jobs with autotune, started by horovodrun."""

import pytest

from tests.runner.launching import executable, run_job

pytestmark = pytest.mark.heavy

PROGRAM = """
import os, signal, sys
import numpy
import horovod.numpy as hvd

for steps in map(int, sys.argv[2:]):
    hvd.init()
    if hvd.rank() == 0:
        print("an epoch begins", file=sys.stderr, flush=True)
    tensors = [numpy.full(1000, hvd.rank() + 1, numpy.float32) for _ in range(20)]
    for step in range(steps):
        if step == int(sys.argv[1]) and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        handles = [hvd.allreduce_async(t, name=f"t{i}", op=hvd.Sum) for i, t in enumerate(tensors)]
        assert all((hvd.synchronize(h) == 3).all() for h in handles), step
        hvd.step()
    hvd.shutdown()
"""
HEADER = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,tensor_fusion_threshold,"
    "score,step_ms,chunk_bytes"
)
FLAGS = ["-np", "2", "--autotune", "--autotune-steps-per-sample", "3", "--autotune-bayes-opt-max-samples", "6"]


@pytest.fixture
def train(tmp_path):
    program = executable(tmp_path / "train.py", PROGRAM)

    def run(*flags, steps=(800,), killed=-1):
        command = ["python", str(program), str(killed), *map(str, steps)]
        return run_job([*flags, *command], environment={"XDG_CACHE_HOME": str(tmp_path)}, cwd=tmp_path)

    return run


def test_a_search_is_logged_stored_shown_and_reused(train, tmp_path):
    done = train(*FLAGS, "--autotune-log-file", "log.csv")
    assert done.code == 0, done.err
    assert "autotune: tuning fusion_bytes, chunk_bytes of steps that reduce 0.1 MiB: at most 6 candidates" in done.err
    assert "autotune: done after " in done.err
    header, *rows = (tmp_path / "log.csv").read_text().splitlines()
    assert header == HEADER
    assert len(rows) >= 6
    rows = [dict(zip(header.split(","), map(float, row.split(",")), strict=True)) for row in rows]
    assert rows[0]["tensor_fusion_threshold"] == 131072  # what the default amounts to for these tensors
    for row in rows:
        assert row["score"] * row["step_ms"] == pytest.approx(80 * 1.0, rel=0.01)  # KB, as bytes / us times ms
    shown = run_job(["--autotune-show"], environment={"XDG_CACHE_HOME": str(tmp_path)})
    assert "localhost:2  steps that reduce 0.1 MiB (model " in shown.out
    assert f"fusion_bytes={int(rows[-1]['tensor_fusion_threshold'])}, chunk_bytes=" in shown.out
    again = train("-np", "2", "--autotune-reuse", steps=[60])
    assert again.code == 0, again.err
    assert "autotune: using the result of " in again.err


def test_losing_a_rank_ends_the_job(train):
    done = train(*FLAGS, killed=40)
    assert done.code != 0
    assert "autotune: tuning fusion_bytes" in done.err
    assert "rank 1" in done.err


def test_the_next_epoch_of_a_process_keeps_the_result(train, tmp_path):
    """As in elastic jobs, which call init again when ranks come or go."""
    done = train(*FLAGS, "--autotune-log-file", "log.csv", steps=[800, 100])
    assert done.code == 0, done.err
    _, first, second = done.err.split("an epoch begins")
    assert "autotune: done after " in first
    assert "autotune" not in second
    assert (tmp_path / "log.csv").read_text().count("hierarchical_allreduce,") == 1
    # Interrupted after the first candidates: the second epoch searches from the best values so far.
    done = train(*FLAGS, steps=[50, 800])
    assert done.code == 0, done.err
    _, first, second = done.err.split("an epoch begins")
    assert "autotune: the search ended early, after " in first
    assert "autotune: done after " in second


def test_too_short_jobs_are_reported(train):
    done = train(*FLAGS, steps=[5])
    assert done.code == 0, done.err
    assert "the search ended before anything was measured" in done.err
