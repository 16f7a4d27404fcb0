"""Calibration in a real job."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.planner import network
from tests.runner.launching import run_job


@pytest.mark.heavy
def test_the_links_of_a_job_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    done = run_job(["-np", "2", "python", "-m", "horovod.planner", "--calibrate", str(path)])
    assert done.code == 0, done.err
    assert "between ranks over TCP" in done.out
    net = network.load(path)
    assert net.workers == (2, 2)
    # A fit to the times of a busy machine may leave out the latency or the time per byte, but not both.
    assert 0 <= net.latency < 10
    assert 0 <= net.intra_latency < 10
    assert 1e-7 < net.latency + 2**20 / net.bandwidth < 100
    assert 1e-8 < net.intra_latency + 2**20 / net.intra_bandwidth < 100
