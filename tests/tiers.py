"""The two tiers of tests.

    python -m pytest --tier=first     what `make test` runs: each behaviour once
    python -m pytest --tier=more      all other tests, as `make test-more` runs them

Without the option both run. A test belongs to the second tier if it is marked ``heavy`` (it repeats at length what
others show) or belongs to an integration or a second backend (`SECOND`), unless it is marked ``smoke``: one short test
of each of those stays in the first tier.
"""

from typing import Any

import pytest

from tests.lanes import lane

TIERS = ("first", "more")
SECOND = ("cluster", "launchers", "spark", "ray", "keras-torch", "keras-jax", "keras-legacy")
"""Lanes whose tests belong to the second tier."""
TARGETS = {"first": "make test-more", "more": "make test"}
_LEFT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier", choices=TIERS, help="run one tier of tests: first, as make test does, or more, as make test-more does"
    )


def tier(nodeid: str, marks: set[str]) -> str:
    """Return the tier of a test.

    Args:
        nodeid: The test's id, such as ``tests/ray/test_run.py::test_run``.
        marks: Names of its marks.
    """
    if "heavy" in marks or (lane(nodeid) in SECOND and "smoke" not in marks):
        return "more"
    return "first"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--tier")
    if not chosen:
        return
    left = {item for item in items if tier(item.nodeid, {mark.name for mark in item.iter_markers()}) != chosen}
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=list(left))
        config.stash[_LEFT] = len(left)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Any:
    """Report the number from a process of pytest-xdist to the one that writes the summary and collects no tests."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left"] = session.config.stash.get(_LEFT, 0)
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = (getattr(node, "workeroutput", None) or {}).get("left", 0)  # each process has collected all tests
    node.config.stash[_LEFT] = max(told, node.config.stash.get(_LEFT, 0))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if left := config.stash.get(_LEFT, 0):
        terminalreporter.write_line(f"{left} tests belong to the other tier ({TARGETS[config.getoption('--tier')]})")
