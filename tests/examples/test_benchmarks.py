"""The programs of benchmarks/: each one measures something and prints it; and their figures become the right tables."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.testbed.hosts import why_not

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """load(name) -> a module of the folder, which is no package; forgotten after the test, with those it imports."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))

    def of(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"benchmarks_{name.replace('/', '_')}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    yield of
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_table_takes_each_peers_best_mode_and_compares_with_ours(load) -> None:
    report = load("report")
    ours = report.Cell({"allreduce_": [10e-6] * 3})
    peer = report.Cell({"async": [90e-6] * 3, "blocking": [25e-6] * 3})
    broken = report.Cell(failure="died")
    text = report.table(2, ["horovod", "gloo", "DDP", "MPI"], {"4 B": {"horovod": ours, "gloo": peer, "MPI": broken}})
    row = text.splitlines()[-1]
    assert row == "| 4 B | 10.0 (10.0-10.0) | 25.0 (25.0-25.0) blocking **2.50x** | - | failed |"


def test_steady_changes_of_speed_change_no_ratio(load) -> None:
    price = load("price")
    assert price.interval([float(i) for i in range(10)]) == (4.5, 1.0, 8.0)  # 97.9 % of true medians are within
    assert price.ratio([1.0, 1.1, 1.2, 1.3]) == pytest.approx(1.0)
    commit = load("commit")
    found = commit.cost([1.0, 2.0, 4.0], [1.1, 2.1, 4.1], [0.01, 0.02, 0.5])
    assert (found.without, found.call, found.extra) == (2.0, 0.02, pytest.approx(0.1))


def test_recovery_and_lost_steps_of_an_elastic_job(load) -> None:
    figures = load("elastic_figures")
    lines = [
        *figures.parse(1, "1 begins 0 0 3\n2 step 1 3\n3.1 step 2 3\n3.3 begins 2 0 2\n3.4 step 3 2\n"),
        *figures.parse(2, "1 begins 0 1 3\n2 step 1 3\n3.3 begins 2 1 2\n3.5 step 3 2\n3.6 step 4 2\n3.7 st"),
    ]
    assert figures.recovery(lines, {1, 2}, 3.0) == pytest.approx(0.5)  # 3.1: under way at the kill
    assert figures.recovery(lines, {1, 2}, 3.55) is None
    assert figures.lost(lines, {1, 2}, 3.0) == 0


def test_figures_of_a_gpu_become_a_document(load) -> None:
    about = {"device": "NVIDIA H200", "date": "2026-11-25", "versions": "torch 2.11"}
    rates = {"to the host": 50e9, "to the device": 50e9, "both at once": 40e9, "on the device": 4e12}
    case = {"bytes": 256 << 20, "call": 2e-5, "horovod": [1e-3] * 3, "gloo": [1e-2] * 3}
    run = {"part": "allreduce", **about, "ranks": 2, "bare copies": rates, "by ipc": True, "seconds": [case]}
    text = load("gpu_tables").document({"by IPC": run}, "probe ok 3\n")
    assert text.startswith("## On a GPU: NVIDIA H200, 2026-11-25\n\ntorch 2.11\n\n### by IPC: 2 ranks\n")
    # 256 MiB in a millisecond: 12 passes over 268 MB are 3.2 of 4 TB/s.
    assert "| 256 MiB | 1,000 (1,000 - 1,000) | 10,000 (10,000 - 10,000) | 10.0x | 20 | 268.44 | 671 % | 81 % |" in text
    assert text.endswith("### Checks\n\n```\nprobe ok 3\n```\n")


def test_ranks_on_hosts_are_numbered_host_by_host(load) -> None:
    hosts = load("hosts")
    ours = hosts.environments(hosts.Column("horovod", "horovod", {"X": "1"}), 2, 2, ("10.0.0.254", 4000), "/key")
    places = [(e["HOROVOD_RANK"], e["HOROVOD_HOSTNAME"], e["HOROVOD_LOCAL_RANK"]) for e in ours]
    assert places == [("0", "host0", "0"), ("1", "host0", "1"), ("2", "host1", "0"), ("3", "host1", "1")]
    assert all(e["X"] == "1" and e["HOROVOD_SIZE"] == "4" and e["HOROVOD_KEY_FILE"] == "/key" for e in ours)


@pytest.mark.parametrize("name", ["run", "hosts", "control", "elastic", "with_tensorflow", "fusion", "compression"])
def test_a_wrong_option_is_refused(name: str) -> None:
    done = subprocess.run([sys.executable, str(FOLDER / f"{name}.py"), "--none"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "unrecognized arguments: --none" in done.stderr


IN_A_JOB = [sys.executable, "-m", "horovod.runner", "-np", "2", sys.executable]
MEASURES = {
    "optimizer": ([*IN_A_JOB, "optimizer.py", "--rounds=1", "--steps=2", "--cases=many"], r"DDP, addition +\|"),
    "price": (
        [*IN_A_JOB, "price.py", "--rounds=1", "--block=0.02", "--background=0.5", "--cases=many", "--no-pin"],
        r"\| a timeline beside it \|",
    ),
    "commit": (
        [*IN_A_JOB, "commit.py", "--network=resnet18", "--batch=1", "--pairs=2"],
        r"rank 0: resnet18, batch 1, 22.3 million numbers of state: a step ",
    ),
    "jax_chain": (
        [sys.executable, "jax_chain.py", "--ranks", "2", "--rounds=1", "--seconds=0", "--chains", "1"],
        r"\| 4 KiB x 1 \| \d+\.\d+ \|",
    ),
    "elastic": (
        [sys.executable, "elastic.py", "--parts=many", "--workers=4"],
        r"\| kill -9 of one of 4 bare processes \| p50 ",
    ),
    "delay": (
        [sys.executable, "delay/run.py", "--delay=3000", "--hosts=2", "--sizes=4", "--rounds=1"],
        r"ours +2 hosts +4 B: +\d+ us .* mean +(2[7-9]\d\d|[3-9]\d{3}|\d{5,}) us",
    ),
}
"""What a developer runs, and what it prints."""


@pytest.mark.heavy
@pytest.mark.parametrize("name", MEASURES)
def test_it_measures(name: str, tmp_path: Path, load) -> None:
    command, printed = MEASURES[name]
    if name == "delay" and (reason := load("delay/hosts").missing()):
        pytest.skip(f"no hosts here: {reason}")
    if name == "jax_chain":
        pytest.importorskip("jax")
    command = [str(FOLDER / word) if word.endswith(".py") else word for word in command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    if "cannot make a network namespace" in done.stderr or "delay1: Operation not permitted" in done.stderr:
        pytest.skip("network namespaces or TUN devices are not allowed here")
    assert done.returncode == 0, done.stderr
    assert re.search(printed, done.stdout), done.stdout
    assert not [name for name in os.listdir("/sys/class/net") if name.startswith("delay")]


@pytest.mark.heavy
def test_a_rank_is_killed_and_a_cable_pulled(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    out = tmp_path / "figures.json"
    flags = ["--kills", "1", "--pulls", "1", "--heartbeat", "6", "--json", str(out)]
    command = [sys.executable, str(FOLDER / "elastic_hosts.py"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert figures["kills"][0] < figures["pulls"][0]
    assert figures["pulls"][0] > 6, "nobody knows before the heartbeat's time is over"
