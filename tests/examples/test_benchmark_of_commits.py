"""benchmarks/commit.py: its pure part, and the program as a developer runs it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.examples.benchmark_modules import FOLDER, loaded
from tests.runner.launching import run_job

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def commit() -> Iterator[ModuleType]:
    with loaded("commit", "peers", "peers.training") as module:
        yield module


def test_a_machine_that_changes_its_speed_changes_no_difference(commit: ModuleType) -> None:
    found = commit.cost([1.0, 2.0, 4.0], [1.1, 2.1, 4.1], [0.01, 0.02, 0.5])
    assert (found.without, found.call) == (2.0, 0.02)
    assert (found.extra, found.share) == (pytest.approx(0.1), pytest.approx(0.05))
    said = commit.line("net", 51_000_000, found)
    assert said.startswith("net, 51.0 million numbers of state: a step 2000 ms; commit() 20.00 ms (1.00%); a step with")
    assert said.endswith("+100.0 ms (+100.0 to +100.0), +5.00% of a step")
    with pytest.raises(ValueError, match="3 and 2 steps, accepted are equal numbers from 2 on"):
        commit.cost([1.0] * 3, [1.0] * 2, [])


def test_the_network_is_resnet_50(commit: ModuleType) -> None:
    parameters = [parameter.numel() for parameter in commit.resnet50().parameters()]
    assert (len(parameters), sum(parameters)) == (161, 25_557_032)


@pytest.mark.heavy
def test_it_measures(tmp_path: Path) -> None:
    flags = ["--network", "resnet18", "--batch", "1", "--pairs", "2", "--json", str(tmp_path / "found")]
    done = run_job(["-np", "2", sys.executable, str(FOLDER / "commit.py"), *flags])
    assert done.code == 0, done.err
    assert len(re.findall(r"rank \d: resnet18, batch 1, 22.3 million numbers of state: a step ", done.out)) == 2
    figures = json.loads((tmp_path / "found").read_text())
    assert figures["without"] > 0 < figures["call"]
