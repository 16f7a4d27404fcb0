"""benchmarks/price.py and benchmarks/control.py: their pure parts, and both as a developer runs them."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.examples.benchmark_modules import FOLDER, load, loaded
from tests.runner.launching import run_job


@pytest.fixture(scope="module")
def price() -> Iterator[ModuleType]:
    with loaded("price", "cases", "overheads", "peers", "peers.ours", "peers.model", "peers.training") as module:
        yield module


def test_the_interval_holds_the_true_median_as_often_as_it_says(price: ModuleType) -> None:
    assert price.interval([3.0]) == (3.0, 3.0, 3.0)
    assert price.interval([1.0, 2.0, 9.0]) == (2.0, 1.0, 9.0)
    # 10 values: with one left out on each side 97.9 % (11 of 512 throws are beyond), with two 89.1 %.
    assert price.interval([float(i) for i in range(10)]) == (4.5, 1.0, 8.0)
    draw = random.Random(1)
    held = 0
    for _ in range(400):
        _, low, high = price.interval([draw.expovariate(1.0) for _ in range(15)])
        held += low <= math.log(2) <= high
    assert held >= 0.93 * 400


def test_a_machine_that_changes_its_speed_steadily_changes_no_ratio(price: ModuleType) -> None:
    assert price.ratio([1.0, 1.1, 1.2, 1.3]) == pytest.approx(1.0)
    assert price.ratio([1.0, 2.0, 2.0, 1.0]) == 2.0


def test_figures_of_ranks_are_put_together_and_held_against_limits(price: ModuleType) -> None:
    slow = [[0.010, 0.0108, 0.0108, 0.010]] * 8  # four blocks: 8 % more in the middle
    same = [[0.010, 0.010, 0.010, 0.010]] * 8
    rank = {"nothing": [*same, [0.0]], "a timeline beside it": [*slow, [0.0002]]}
    found = price.together([rank, rank])
    assert found["nothing"]["ratios"] == [1.0] * 8
    assert found["a timeline beside it"]["threads"] == [pytest.approx(0.02)]
    _, _, nothing, timeline = price.report("a case", found)
    assert nothing == "| nothing | +0.00 % (+0.00 to +0.00) | 0.00 % | 1 %: met |"
    assert timeline == "| a timeline beside it | +8.00 % (+8.00 to +8.00) | 2.00 % | 3 %: exceeded |"


@pytest.mark.heavy
def test_the_price_of_observing_is_measured_in_one_job(tmp_path: Path) -> None:
    out = tmp_path / "price.json"
    words = [
        "--rounds",
        "1",
        "--block",
        "0.02",
        "--background",
        "0.5",
        "--cases",
        "many",
        "--no-pin",
        "--json",
        str(out),
    ]
    done = run_job(["-np", "2", sys.executable, str(FOLDER / "price.py"), *words])
    assert done.code == 0, done.err
    found = json.loads(out.read_text())["cases"]["many"]
    assert list(found) == [
        "nothing",
        "flight recorder",
        "step accounting",
        "hang explainer",
        "all that is on by default",
        "a timeline beside it",
    ]
    for figures in found.values():
        assert len(figures["ratios"]) == 1
        assert figures["ratios"][0] > 0
        assert 0 < figures["seconds"][0] < 10
    assert found["a timeline beside it"]["threads"][0] > found["nothing"]["threads"][0]
    assert "| a timeline beside it |" in done.out


control = load("control")


@pytest.mark.parametrize(
    ("ranks", "per_host", "schedules", "delays"),
    [(8, 8, False, 2), (8, 8, True, 1), (64, 8, False, 4), (64, 8, True, 4), (64, 1, False, 2), (64, 1, True, 6)],
)
def test_how_many_messages_follow_one_upon_another(ranks: int, per_host: int, schedules: bool, delays: int) -> None:
    assert control.delays(ranks, per_host, schedules) == delays


@pytest.mark.heavy
def test_the_cost_of_agreeing_becomes_a_table(tmp_path: Path) -> None:
    """With a program that says what a run would: rank 0 hears of each rank, and speaks to each host."""
    program = tmp_path / "control_bench"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        "ranks, per_host, schedules = map(int, sys.argv[1:4])\n"
        "role = dict(rank=0, sent=ranks // per_host, received=ranks - 1, sent_bytes=1024, received_bytes=2048)\n"
        "role.update(engine_us=1500.0, program_us=500.0)\n"
        "found = dict(ranks=ranks, hosts=max(1, ranks // per_host), schedules=bool(schedules))\n"
        "found.update(messages=5.0, votes=64.0, vote_bytes=16384.0)\n"
        "found.update(engine_cpu_us=250.0, first_step_s=0.5)\n"
        "found.update(rank0=role, first_of_host=role, last=role)\n"
        "print(json.dumps(found))\n"
    )
    program.chmod(0o755)
    out = tmp_path / "found.json"
    words = [
        str(FOLDER / "control.py"),
        "--program",
        str(program),
        "--most",
        "16",
        "--repeats",
        "2",
        "--json",
        str(out),
    ]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| 16 ")]
    assert rows[1] == "| 16 | 2 | yes | 19, 6 | 3.0, 2.0 | 2.00 | 2.00 | 69 | 4 | 0.25 ms, 0.500 s |"
    assert len(json.loads(out.read_text())["cases"]) == 4 * 4
    done = subprocess.run(
        [sys.executable, str(FOLDER / "control.py"), "--program", "/nowhere"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "/nowhere is not there" in done.stderr
