"""Report skipped tests at the end of a run, with what is needed to run them.

In CI (CI=true) a skip whose reason is not in skips.txt fails the run; otherwise a whole group of tests could
disappear unnoticed. A line of skips.txt: a regular expression for the reason, two or more spaces, what makes the
tests run again.
"""

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

LIST = Path(__file__).with_name("skips.txt")
UNKNOWN = "a line in tests/skips.txt, if that has to be so"
STATUS = 20
"""Exit status of a run that fails because of its skips; distinct from pytest's own."""


def left_out() -> list[tuple[str, str]]:
    """Return (folder of tests, framework it needs) if that framework is not installed, as in make test-tf-matrix."""
    pairs = (("torch", "torch"), ("tensorflow", "tensorflow"), ("keras", "keras"))
    return [(folder, needs) for folder, needs in pairs if not importlib.util.find_spec(needs)]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out folders whose framework is not installed."""
    return True if collection_path in [LIST.with_name(folder) for folder, _ in left_out()] else None


def parse(text: str) -> list[tuple[re.Pattern[str], str]]:
    """Return (reason, remedy) of each line; raise ValueError naming a line without a remedy."""
    known = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            reason, _, remedy = line.partition("  ")
            if not remedy.strip():
                raise ValueError(f"skips.txt:{number} must be REASON, two spaces, what brings it back, got {line!r}")
            known.append((re.compile(reason), remedy.strip()))
    return known


def reason_of(report: Any) -> str:
    """Return the reason why a test or module was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")


def summary(reasons: Sequence[str], known: Sequence[tuple[re.Pattern[str], str]]) -> tuple[list[str], list[str]]:
    """Return (a line for each remedy with its number of tests, unknown reasons)."""
    counts: Counter[str] = Counter()
    whys: dict[str, str] = {}
    unknown = []
    for reason in reasons:
        remedy = next((remedy for pattern, remedy in known if pattern.search(reason)), None)
        if remedy is None:
            unknown.append(reason)
        counts[remedy or UNKNOWN] += 1
        whys.setdefault(remedy or UNKNOWN, reason)
    lines = [f"skipped {count}: {whys[remedy][:150]}; brought back by {remedy}" for remedy, count in counts.items()]
    return lines, list(dict.fromkeys(unknown))


def fails(unknown: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return True if unknown reasons must fail the run: in CI."""
    return bool(unknown) and environ.get("CI", "").lower() in ("1", "true")


def _found(terminal: Any) -> tuple[list[str], list[str]]:
    skipped = [report for report in terminal.stats.get("skipped", []) if not hasattr(report, "wasxfail")]
    reasons = [f"tests/{folder}: {needs} is not installed" for folder, needs in left_out()]
    return summary([*map(reason_of, skipped), *reasons], parse(LIST.read_text()))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Write the report after all of pytest's own output."""
    yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:
        return
    lines, unknown = _found(terminal)
    terminal.write_line("")
    for line in lines or ["nothing was skipped"]:
        terminal.write_line(line)
    if fails(unknown, os.environ):
        terminal.write_line(
            f"FAILED, because CI is set and tests/skips.txt does not know: {'; '.join(unknown)}", red=True
        )
        session.exitstatus = STATUS
