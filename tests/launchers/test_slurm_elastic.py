"""Elastic jobs by horovodrun in a Slurm allocation whose nodes are drained, lost and returned."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launchers.programs import DEADLINE, ROOT

PROGRAM = [sys.executable, "-m", "tests.runner.elastic.program"]
LAUNCHER = [sys.executable, "-m", "horovod.runner"]


class Job:
    """A job that writes its output to a file."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._seen = 0

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def until(self, pattern: str) -> str:
        """Return the first line that matches the pattern after the line found by the previous call."""
        deadline = time.monotonic() + DEADLINE
        while True:
            lines = self.text.splitlines()
            for place, line in enumerate(lines[self._seen :], self._seen + 1):
                if re.search(pattern, line):
                    self._seen = place
                    return line
            shown = "\n".join(line for line in lines if " step " not in line)
            assert time.monotonic() < deadline, f"no {pattern!r} in\n{shown}"
            time.sleep(0.1)


@contextmanager
def running(cluster, folder: Path, *command: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], Job]]:
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [str(part) for part in command], env=cluster.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT
        )  # fmt: skip
    try:
        yield process, Job(folder / "log")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for node in ("n1", "n2", "n3", "n4"):
            cluster.run("scontrol", "update", f"nodename={node}", "state=resume")


@pytest.mark.heavy
def test_nodes_are_drained_returned_and_lost(slurm_cluster, tmp_path):
    """Each node is another host, reached by a job step."""
    stop = tmp_path / "stop"
    salloc = ["salloc", "-Q", "--no-kill", "--nodelist=n[1-3]", "-N3", "-n3", "--ntasks-per-node=1"]
    job = [*LAUNCHER, "-np", "3", "--min-np", "1", "--verbose", *PROGRAM, stop]
    with running(slurm_cluster, tmp_path, *salloc, *job) as (process, log):
        log.until(" begins 0 . 3")
        slurm_cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
        log.until(r" begins [1-9]\d* . 2")  # a planned change: no failure is reported
        assert "failed" not in log.text
        slurm_cluster.run("scontrol", "update", "nodename=n2", "state=resume")
        log.until("3 ranks now; new: rank 2 on host n2")
        slurm_cluster.run("scontrol", "update", "nodename=n3", "state=down", "reason=test")
        log.until("host n3 is lost: its step has ended")
        log.until("srun: error: Node failure on n3")
        log.until("on host n3 failed: its host is lost; 2 ranks left")
        log.until(r" begins [1-9]\d* . 2")
        stop.touch()
        assert process.wait(DEADLINE) == 0, log.text
    assert log.text.count(" ends\n") == 2
    assert "no new workers" in log.text
    assert slurm_cluster.run("squeue", "-h").text == ""


TRAIN = """
import os, time
from horovod.common.basics import HorovodBasics

hvd = HorovodBasics("tests")
hvd.init()
step = 0
while not hvd.should_stop():
    step += 1
    if step == 10:
        print(f"trains, resumes: {os.environ['HOROVOD_RESUME']}", flush=True)
    time.sleep(0.01)
print(f"rank {hvd.rank()} of {hvd.size()} has stopped at step {step}", flush=True)
hvd.shutdown()
"""


@pytest.mark.heavy
def test_the_batch_file_of_the_documentation_stops_when_slurm_warns(slurm_cluster, tmp_path):
    """Run it unchanged; when Slurm sends its warning to the batch shell, the job is requeued."""
    page = (ROOT / "docs/elastic.md").read_text()
    (file,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
    (tmp_path / "elastic.sbatch").write_text(file)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    submitted = slurm_cluster.run("sbatch", f"--chdir={tmp_path}", str(tmp_path / "elastic.sbatch"))
    number = re.search(r"Submitted batch job (\d+)", submitted.text)[1]
    try:
        log = Job(tmp_path / f"elastic-{number}.log")
        for _ in range(8):
            log.until("trains, resumes: 1")
        slurm_cluster.run("scancel", "--signal=USR1", "--batch", number)
        for _ in range(8):
            log.until("has stopped at step")
        found = re.findall(r"rank (\d) of 8 has stopped at step (\d+)", log.text)
        assert sorted(rank for rank, _ in found) == [str(rank) for rank in range(8)], log.text
        assert len({step for _, step in found}) == 1, log.text
        assert "SIGUSR1 received: passed on to the ranks" in log.text
        deadline = time.monotonic() + DEADLINE
        pattern = r"JobState=PENDING .*Restarts=1 "
        while not re.search(pattern, shown := slurm_cluster.run("scontrol", "show", "job", number).text, re.DOTALL):
            assert time.monotonic() < deadline, (shown, log.text)
            time.sleep(0.3)
    finally:
        slurm_cluster.run("scancel", number)
