"""Tests that repeat at length what others show in short are marked ``heavy`` and left to ``make test-all``:

    python -m pytest --heavy      runs them too

A run without them says at its end how many it left out.
"""

from typing import Any

import pytest

_LEFT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--heavy", action="store_true", help="run the tests marked heavy too, as make test-all does")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--heavy"):
        return
    left = [item for item in items if item.get_closest_marker("heavy")]
    if left:
        items[:] = [item for item in items if item not in set(left)]
        config.hook.pytest_deselected(items=left)
        config.stash[_LEFT] = len(left)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Any:
    """Under pytest-xdist the processes that run tests tell the one that reports, which collects none itself."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["heavy"] = session.config.stash.get(_LEFT, 0)
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = (getattr(node, "workeroutput", None) or {}).get("heavy", 0)  # of all tests: each of them collects all
    node.config.stash[_LEFT] = max(told, node.config.stash.get(_LEFT, 0))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if left := config.stash.get(_LEFT, 0):
        terminalreporter.write_line(f"left to make test-all: {left} tests marked heavy (--heavy runs them)")
