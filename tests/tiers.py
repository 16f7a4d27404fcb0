"""Tiers of tests.

    python -m pytest --tier=first     what `make test` runs: each behaviour once
    python -m pytest --tier=more      what `make test-more` runs: all others except
    python -m pytest --tier=long      those marked long, which `make test-all` adds

Without the option all tests run. A test belongs to the second tier if it is marked ``heavy`` (it takes seconds of
CPU, or repeats what others show) or belongs to an integration or a second backend (`SECOND_FOLDERS`,
`SECOND_LANES`). A test marked ``smoke`` stays in the first tier: one short test for each of those.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.lanes import lane

TIERS = ("first", "more", "long")
SECOND_FOLDERS = tuple(
    f"tests/{name}" for name in ("benchmark", "clouds", "cluster", "examples", "launchers", "notebook", "ray", "spark")
)
SECOND_LANES = ("keras-torch", "keras-jax", "keras-legacy")
"""Lanes in which only tests marked ``smoke`` stay in the first tier."""
_ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=TIERS,
        help="run one tier of tests: first (make test), more (make test-more) or long (only make test-all)",
    )


def tier(nodeid: str, marks: set[str]) -> str:
    """Return the tier of a test.

    Args:
        nodeid: The test's id, such as ``tests/ray/test_run.py::test_run``.
        marks: Names of its marks.
    """
    if "long" in marks:
        return "long"
    return "more" if "heavy" in marks or (_second(nodeid) and "smoke" not in marks) else "first"


def _second(nodeid: str) -> bool:
    return nodeid.startswith(tuple(f"{folder}/" for folder in SECOND_FOLDERS)) or lane(nodeid) in SECOND_LANES


def none_first(path: str, text: str) -> bool:
    """Return True if no test of a file belongs to the first tier, judging by its text without importing it."""
    if re.search(r"^pytestmark = pytest\.mark\.(heavy|long)$", text, re.MULTILINE):
        return True
    return _second(path) and "mark.smoke" not in text


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without selected tests; importing those of Spark and Ray takes seconds."""
    path = collection_path
    if config.getoption("--tier") != "first" or path.suffix != ".py" or not path.is_relative_to(_ROOT):
        return None
    return True if none_first(path.relative_to(_ROOT).as_posix(), path.read_text()) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--tier")
    if not chosen:
        return
    left = [item for item in items if tier(item.nodeid, {mark.name for mark in item.iter_markers()}) != chosen]
    if left:
        rest = set(left)
        items[:] = [item for item in items if item not in rest]
        config.hook.pytest_deselected(items=left)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--tier"):
        terminalreporter.write_line("tests of other tiers were left out; make test-all runs all of them")
