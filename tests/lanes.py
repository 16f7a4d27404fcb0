"""Which tests belong together, and in which order groups of them begin.

A lane is a list of tests that one process runs one after another, because they share something that is dear to start: a
fleet of workers that have imported TensorFlow, or hosts made of namespaces. All other tests make a lane of each file.
With ``-n`` (pytest-xdist) lanes run side by side, and the longest begin first; without it the order alone keeps a fleet
from being put to sleep and woken again for each backend of Keras.

A test that is put into the wrong lane costs time and nothing else.
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
"""Lanes of several files, in the order in which they begin: the longest first, those that wait between those that
compute and take gigabytes."""
SINGLE = {
    "tests/cluster": "cluster",
    "tests/launchers": "launchers",
    "tests/spark": "spark",
    "tests/torch": "torch",
    "tests/jax": "jax",
    "tests/ray": "ray",
}
"""Folders that are a lane each."""
OF_ALL_FRONTENDS = ("tests/conformance", "tests/test_api.py")
"""Tests of these go to the lane and the part of the frontend that they name, and of its backend."""
FRAMEWORKS = ("tests/keras", "tests/tensorflow")
"""Folders whose tests go to the lane of the backend that they name in their first parameter or in their file's name."""
PARTS = {
    "torch": ("tests/torch", "tests/gpu"),
    "tensorflow": ("tests/tensorflow", "tests/keras", "tests/test_two_faces.py"),
    "jax": ("tests/jax",),
    "spark-ray": ("tests/spark", "tests/ray"),
}
"""Folders and files whose tests run in a pytest of their own (``--part``): the others need not import the framework to
collect them, and its workers start once."""
OTHERS = "others"
"""The part of all other tests."""
_ROOT = Path(__file__).parent.parent


def lane(nodeid: str) -> str:
    """The lane of a test by its id, such as ``tests/keras/test_clients.py::test_names[torch-2]``."""
    path, _, name = nodeid.partition("::")
    folder = "/".join(path.split("/")[:2])
    if folder in FRAMEWORKS:
        named = re.match(r"test_(jax|torch|legacy)", path.rpartition("/")[2]) or re.search(
            r"\[(jax|torch|legacy)\b", name
        )
        return f"keras-{named[1]}" if named else "tensorflow"
    if folder in OF_ALL_FRONTENDS:
        return _of_face(name.partition("[")[2]) or path
    if path == "tests/test_two_faces.py":
        return "keras-jax" if "jax" in name else "tensorflow"
    return SINGLE.get(folder, path)


def _of_face(parameters: str) -> str:
    """The lane for a column of the matrix, such as ``keras, on jax``; empty for faces that need no framework."""
    keras = re.match(r"keras, on (jax|torch)", parameters)
    if keras:
        return f"keras-{keras[1]}"
    framework = re.match(r"(?:keras, on )?(tensorflow|torch|jax)", parameters)
    return framework[1] if framework else ""


def order(nodeid: str) -> int:
    """What to sort tests by: the number of their lane, after which come all files that are a lane each."""
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
    items.sort(key=lambda item: order(item.nodeid))  # a stable sort: inside a lane they stay as they were


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LoadScopeScheduling":
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:  # what pytest-xdist's documentation says to override
            return lane(nodeid)

    config.option.loadscopereorder = False  # by the number of tests; ours are in order
    return Lanes(config, log)
