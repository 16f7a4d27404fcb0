"""List the slowest tests at the end of a run, with their share of the total time.

    python -m pytest --slowest=20

A test's time includes the fixtures that it was the first to request or the last to need. The times of tests that
run in parallel (``-n``) add up to more than the run took.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slowest", type=int, default=0, metavar="N", help="show the N slowest tests at the end, and their share"
    )


def seconds_of(reports: Iterable[Any]) -> dict[str, float]:
    """Return by test the seconds of its setup, call and teardown together; other reports are ignored."""
    seconds: dict[str, float] = {}
    for report in reports:
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    return seconds


def summary(seconds: Mapping[str, float], most: int) -> list[str]:
    """Return lines: a heading with the share of the `most` slowest tests, then one line for each, slowest first."""
    ranked = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))[:most]
    if not ranked:
        return []
    total, slow = sum(seconds.values()), sum(duration for _, duration in ranked)
    share = slow / total if total else 0.0
    head = f"the {len(ranked)} slowest of {len(seconds)} tests took {slow:.1f} of {total:.1f} s, {share:.0%}:"
    return [head, *(f"{duration:7.1f} s  {name}" for name, duration in ranked)]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    most = config.getoption("--slowest")
    lines = summary(seconds_of(report for reports in terminalreporter.stats.values() for report in reports), most)
    for number, line in enumerate(lines if most else []):
        if number == 0:
            terminalreporter.section("slowest tests")
        terminalreporter.write_line(line)
