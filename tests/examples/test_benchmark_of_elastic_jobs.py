"""benchmarks/elastic.py: its pure parts, and one part as a developer runs it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.examples.benchmark_modules import FOLDER, loaded
from tests.testbed.hosts import why_not

BESIDE = ("report", "elastic_figures", "elastic_jobs")


@pytest.fixture(scope="module")
def driver() -> Iterator[ModuleType]:
    with loaded("elastic", *BESIDE) as module:
        yield module


@pytest.fixture(scope="module")
def figures() -> Iterator[ModuleType]:
    with loaded("elastic_figures", "report") as module:
        yield module


def of_workers(figures: ModuleType, **texts: str) -> list:
    """Lines of workers p1, p2, ...; commas stand for ends of lines."""
    return [
        line
        for name, text in texts.items()
        for line in figures.parse(int(name[1:]), "".join(part.strip() + "\n" for part in text.split(",")))
    ]


def test_a_line_that_a_killed_worker_has_begun_is_left_out(figures: ModuleType) -> None:
    lines = figures.parse(7, "1.5 begins 0 2 4\n1.75 step 1 4\n2.0 st")
    assert lines == [figures.Line(1.5, 7, "begins", ("0", "2", "4")), figures.Line(1.75, 7, "step", ("1", "4"))]
    assert [line.number(0) for line in lines] == [0, 1]
    assert figures.parse(7, "") == []


def test_members_are_those_that_live_with_their_last_rank(figures: ModuleType) -> None:
    lines = of_workers(
        figures, p1="1 begins 0 0 3, 5 begins 9 0 2", p2="1 begins 0 1 3", p3="1 begins 0 2 3, 5 begins 9 1 2"
    )
    assert figures.members(lines, {1, 3, 8}) == {1: (0, 2), 3: (1, 2)}


def test_recovery_ends_with_the_last_survivors_step_in_the_new_membership(figures: ModuleType) -> None:
    lines = of_workers(
        figures,
        p1="1 begins 0 0 3, 2 step 1 3, 3.1 step 2 3, 3.3 begins 2 0 2, 3.4 step 3 2",  # 3.1: under way at the kill
        p2="1 begins 0 1 3, 2 step 1 3, 3.3 begins 2 1 2, 3.5 step 3 2, 3.6 step 4 2",
    )
    assert figures.recovery(lines, {1, 2}, 3.0) == pytest.approx(0.5)
    assert figures.recovery(lines, {1, 2}, 3.35) is None
    assert figures.recovery(lines[:-2], {1, 2}, 3.0) is None  # one of them has not made it yet
    assert figures.recovery(lines, set(), 3.0) is None
    assert figures.lost(lines, {1, 2}, 3.0) == 0


def test_steps_that_are_done_again_are_counted_by_what_anybody_had_finished(figures: ModuleType) -> None:
    lines = of_workers(
        figures,
        p1="1 begins 0 0 2, 2 step 11 2, 4 begins 10 0 2, 5 step 11 2",  # from a snapshot at 10
        p2="1 begins 0 1 2, 2.1 step 11 2, 2.2 step 12 2",  # the one that is killed
    )
    assert figures.lost(lines, {1}, 3.0) == 2


def test_the_pause_is_the_longest_time_without_a_step(figures: ModuleType) -> None:
    lines = of_workers(
        figures,
        p1="1 begins 0 0 2, 2 step 1 2, 3 begins 1 0 1, 4 step 2 1, 6 step 3 1, 7 begins 3 0 2, 8 step 4 2",
        p2="1 begins 0 0 2, 2 step 1 2, 3 begins 1 0 1, 4 step 2 1, 6.5 step 3 1, 7 begins 3 0 2, 8 step 4 2",
    )
    assert figures.pause(lines, {1, 2}, 2.5, 2) == pytest.approx(2.0)
    assert figures.pause(lines, {1, 2}, 2.5, 3) is None


def test_cells(figures: ModuleType) -> None:
    assert figures.spread([]) == "-"
    assert figures.spread([0.03, 0.031, 0.9]) == "p50 31 ms, p99 900 ms, max 900 ms"
    assert figures.spread([0.001 * n for n in range(1, 202)]) == "p50 101 ms, p99 199 ms, max 201 ms"
    assert [figures.seconds(value) for value in (0.0123, 1.234, 12.34)] == ["12 ms", "1.23 s", "12.3 s"]
    assert figures.row("a", "b", "c") == "| a | b | c |"
    assert figures.ratio_of_turns([(1.0, 1.1), (2.0, 2.0), (1.0, 0.9)]) == (1.0, 0.9, 1.1)


def test_what_the_launcher_reports_of_faults(figures: ModuleType) -> None:
    from horovod.chaos.events import Event, Kind
    from horovod.chaos.report import Outcome, lines

    outcomes = [Outcome(Event(Kind.KILL), 1.0, 1.1, 1.5), Outcome(Event(Kind.STOP), 3.0)]
    text = "".join(f"horovodrun: {line}\n" for line in lines(outcomes))
    assert figures.chaos_report(text) == figures.Chaos(2, "1 kill, 1 stop", 1, 1, 0.5, 0.5, 0.5)
    assert figures.chaos_report("\n".join(lines(outcomes[1:]))) == figures.Chaos(1, "1 stop", 0, 0)
    assert figures.chaos_report("chaos: no event") is None


def test_a_part_that_there_is_not(driver: ModuleType) -> None:
    assert driver.parts_named("many,kill") == ["many", "kill"]
    with pytest.raises(argparse.ArgumentTypeError, match="'kills' is no part; accepted are kill, join, many, idle, "):
        driver.parts_named("kills")


def test_kills_as_a_cell(driver: ModuleType) -> None:
    kills = driver.Kills([0.1, 0.2, 0.3], [0, 2, 0])
    assert kills.cell() == "p50 200 ms, p99 300 ms, max 300 ms (3 kills); 2 steps done again in all, 2 at most"
    kills = driver.Kills([0.1], [0], failed=True)
    assert kills.cell().endswith("(1 kills); 0 steps done again in all, 0 at most; then it failed")
    assert driver.Kills(failed=True).cell() == "failed"


def test_a_process_of_a_job_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    flags = ["--parts", "many", "--workers", "4", "--json", str(out)]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "elastic.py"), *flags], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "| kill -9 of one of 4 bare processes | p50 " in done.stdout
    (took,) = json.loads(out.read_text())["many"]
    assert took > 0


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
    assert len(figures["again"]) == 2
    assert figures["pulls"][0] > 6, "nobody knows before the heartbeat's time is over"
