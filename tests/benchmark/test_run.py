"""The benchmark as a user runs it: a real job with few sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from horovod.common.bootstrap.calibration import World, load
from tests.runner.launching import marked_environment, processes_with, run_job


def test_all_collectives(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    argv = ["--sizes", "4,64K", "--rounds", "1", "--collectives", "all", "--peers", "none", "--json", str(out)]
    done = run_job(["-np", "2", "--benchmark", "--", *argv])
    assert done.code == 0, done.err
    found = json.loads(out.read_text())
    assert found["ranks"] == 2
    kinds = {r["collective"] for r in found["results"]}
    assert kinds == {"allreduce", "broadcast", "allgather", "alltoall", "reducescatter", "barrier"}
    assert all(0 < r["p10"] <= r["median"] <= r["p90"] < 10 for r in found["results"])
    assert "allreduce, 2 ranks, float32; median (10th to 90th percentile)" in done.out.splitlines(), "no rank in front"


@pytest.mark.heavy
def test_algorithms_beside_their_formulas(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    argv = ["--sizes", "4K", "--rounds", "1", "--peers", "none", "--algorithms", "all", "--json", str(out)]
    done = run_job(["-np", "2", "--benchmark", "--", *argv])
    assert done.code == 0, done.err
    assert "algorithm hierarchical is left out: it cannot run in this world" in done.err
    found = {r["column"]: r for r in json.loads(out.read_text())["results"]}
    links = ("recursive_doubling", "rabenseifner", "pairwise", "ring", "tree", "driver", "naive")
    assert set(found) == {"horovod", "shared", "shm", *(f"{name} (tcp)" for name in links)}
    for name in links:
        assert found[f"{name} (tcp)"]["algorithm"] == name
        assert found[f"{name} (tcp)"]["predicted"] > 0
        assert found[f"{name} (tcp)"]["formula"] in done.out


@pytest.mark.heavy
def test_calibration_stores_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = marked_environment({"XDG_CACHE_HOME": str(tmp_path), "HOROVOD_CALIBRATE": None})
    command = [sys.executable, "-m", "horovod.runner", "-np", "2", "--benchmark", "--", "--calibrate"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert processes_with(environment["HVD_TEST_MARK"]) == []
    [path] = (tmp_path / "horovod").iterdir()
    assert str(path) in done.stdout
    found = json.loads(path.read_text())
    assert (found["world"]["size"], found["world"]["transport"]) == (2, "auto")
    assert set(found["tuning"]) <= {"direct_bytes", "chunk_bytes", "stream_bytes"}
    assert set(found["model"]) == {"alpha", "beta", "gamma", "local_alpha", "local_beta"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text, trouble = load(World(**found["world"]))
    assert trouble == ""
    assert text == ",".join(f"{name}={value}" for name, value in found["tuning"].items())
