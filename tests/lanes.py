"""Group tests into lanes and order the lanes.

A lane is a list of tests that one process runs in sequence because they share something slow to start: worker
processes that have imported TensorFlow, or hosts made of namespaces. Every other test file is a lane by itself.
With ``-n`` (pytest-xdist) lanes run in parallel, longest first. Without it, the order keeps workers from being
stopped and restarted for each Keras backend.

A test in the wrong lane costs time but stays correct.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

LONGEST_FIRST = (
    "tensorflow",
    "cluster",
    "keras-jax",
    "launchers",
    "spark",
    "keras-torch",
    "torch",
    "ray",
    "jax",
    "keras-legacy",
)
"""Lanes of several files in start order.

The longest first, with lanes that mostly wait placed between lanes that use much CPU and memory.
"""
SINGLE = {
    "tests/cluster": "cluster",
    "tests/launchers": "launchers",
    "tests/spark": "spark",
    "tests/torch": "torch",
    "tests/jax": "jax",
    "tests/ray": "ray",
}
"""Folders that form one lane each."""
OF_ALL_FRONTENDS = ("tests/conformance", "tests/test_api.py")
"""Tests in these folders go to the lane and part of the frontend, and its backend, that their id names."""
FRAMEWORKS = ("tests/keras", "tests/tensorflow")
"""Folders whose tests go to the lane of the backend named by their first parameter or by their file name."""
PARTS = {
    "torch": ("tests/torch", "tests/gpu"),
    "tensorflow": ("tests/tensorflow", "tests/keras", "tests/test_two_frontends.py"),
    "jax": ("tests/jax",),
    "spark-ray": ("tests/spark", "tests/ray"),
}
"""Folders and files whose tests run in a separate pytest process (``--part``).

Other parts then need not import the framework to collect them, and the framework's workers start only once.
"""
OTHERS = "others"
"""The part of all other tests."""
_ROOT = Path(__file__).parent.parent


def lane(nodeid: str) -> str:
    """Return the lane of a test by its id, such as ``tests/keras/test_clients.py::test_names[torch-2]``."""
    path, _, name = nodeid.partition("::")
    folder = "/".join(path.split("/")[:2])
    if folder in FRAMEWORKS:
        named = re.match(r"test_(jax|torch|legacy)", path.rpartition("/")[2]) or re.search(
            r"\[(jax|torch|legacy)\b", name
        )
        return f"keras-{named[1]}" if named else "tensorflow"
    if folder in OF_ALL_FRONTENDS:
        return _of_frontend(name.partition("[")[2]) or path
    if path == "tests/test_two_frontends.py":
        return "keras-jax" if "jax" in name else "tensorflow"
    return SINGLE.get(folder, path)


def _of_frontend(parameters: str) -> str:
    """Return the lane for a column of the conformance matrix, such as ``keras, on jax``.

    Empty for frontends that need no framework.
    """
    keras = re.match(r"keras, on (jax|torch)", parameters)
    if keras:
        return f"keras-{keras[1]}"
    framework = re.match(r"(?:keras, on )?(tensorflow|torch|jax)", parameters)
    return framework[1] if framework else ""


def order(nodeid: str) -> int:
    """Return the sort key of a test: its lane's index; lanes of a single file come last."""
    name = lane(nodeid)
    return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)


def part(nodeid: str) -> str:
    """Return the part of a test by its id, or of a file or folder by its path, such as ``tests/torch``."""
    path = nodeid.partition("::")[0]
    if path != nodeid and path.startswith(OF_ALL_FRONTENDS):
        name = lane(nodeid).removeprefix("keras-")
        return name if name in PARTS else OTHERS
    return next((name for name, paths in PARTS.items() for p in paths if f"{path}/".startswith(f"{p}/")), OTHERS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=(*PARTS, OTHERS), help="collect the tests of one part only (tests/lanes.py)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    chosen = config.getoption("--part")
    if not chosen or not collection_path.is_relative_to(_ROOT / "tests"):
        return None
    path = collection_path.relative_to(_ROOT).as_posix()
    return True if path != "tests" and not path.startswith(OF_ALL_FRONTENDS) and part(path) != chosen else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if chosen := config.getoption("--part"):
        items[:] = [item for item in items if part(item.nodeid) == chosen]
    items.sort(key=lambda item: order(item.nodeid))  # a stable sort keeps the order within a lane


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LoadScopeScheduling":
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:  # pytest-xdist documents this method as the one to override
            return lane(nodeid)

    config.option.loadscopereorder = False  # would sort by the number of tests; lanes are already ordered
    return Lanes(config, log)
