"""tools/check_imports.py finds circular imports; `make lint` runs it on this repository."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_imports  # noqa: E402


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": "import pack.b", "b.py": "import os"}, []),
        ({"a.py": "import pack.b", "b.py": "def f():\n    from pack import a"}, [["pack.a", "pack.b"]]),
        (
            {"a.py": "from pack.room import x", "room/__init__.py": "from .b import x", "room/b.py": "import pack.a"},
            [["pack.a", "pack.room", "pack.room.b"]],
        ),
    ],
    ids=["down only", "within a function", "through a package"],
)
def test_circles_are_found(tmp_path, files, expected):
    root = tmp_path / "pack"
    for name, text in {"__init__.py": "", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    assert check_imports.circles(check_imports.graph_of(root)) == expected
    assert check_imports.main([str(root)]) == (1 if expected else 0)
