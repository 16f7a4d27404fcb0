"""``python -m pytest --quick``: tests of the launcher and of pure parts, without any framework.

``make quick`` runs them in an environment without frameworks. If one is installed, importing it here fails as if it
were not.
"""

import sys
from pathlib import Path

import pytest

PARTS = (
    "tests/chaos",
    "tests/common/contract",
    "tests/common/launchers",
    "tests/common/security",
    "tests/common/store",
    "tests/common/telemetry/test_explain.py",
    "tests/common/telemetry/test_sentence.py",
    "tests/common/telemetry/test_stacks.py",
    "tests/common/telemetry/test_steps.py",
    "tests/common/training_loop/test_gradients.py",
    "tests/recorder",
    "tests/runner/agent/test_messages.py",
    "tests/runner/command",
    "tests/runner/elastic/test_limits.py",
    "tests/runner/elastic/test_membership.py",
    "tests/runner/elastic/test_membership_ends.py",
    "tests/runner/elastic/test_messages.py",
    "tests/runner/output",
    "tests/runner/plan",
    "tests/runner/test_launch.py",
    "tests/runner/attribution",
    "tests/timeline/test_tool.py",
)
"""Files and folders to run; a test in them that needs a framework calls ``pytest.importorskip``."""
FRAMEWORKS = ("flax", "jax", "keras", "lightning", "mxnet", "pyspark", "ray", "tensorflow", "tf_keras", "torch")
_ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests of the launcher and of pure parts; no framework")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        for name in FRAMEWORKS:
            sys.modules[name] = None  # type: ignore[assignment]  # not found, by import and by find_spec


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out paths that are neither within a part nor a parent of one."""
    if not config.getoption("--quick") or not collection_path.is_relative_to(_ROOT):
        return None
    path = collection_path.relative_to(_ROOT)
    near = any(path.is_relative_to(part) or Path(part).is_relative_to(path) for part in PARTS)
    return None if near else True
