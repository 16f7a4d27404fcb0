"""tools/check_imports.py: circles, in made-up packages and in this repository."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_imports  # noqa: E402


def package(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"__init__.py": "", **files}.items():
        path = root / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root / "pack"


def test_there_is_no_circle_in_this_repository(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_imports.main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": "import pack.b", "b.py": "import pack.c", "c.py": "import os"}, []),
        ({"a.py": "import pack.b", "b.py": "from pack import a"}, [["pack.a", "pack.b"]]),
        ({"a.py": "from .b import x", "b.py": "def f():\n    from .a import y"}, [["pack.a", "pack.b"]]),
        (
            {
                "a.py": "from pack.b import x",
                "b.py": "if TYPE_CHECKING:\n    from pack.c.d import y",
                "c/d.py": "from ..a import z",
            },
            [["pack.a", "pack.b", "pack.c.d"]],
        ),
        (
            {
                "a.py": "from pack.room import x",
                "room/__init__.py": "from pack.room.b import x",
                "room/b.py": "import pack.a",
            },
            [["pack.a", "pack.room", "pack.room.b"]],
        ),
    ],
    ids=["down only", "two", "within a function", "for type checkers", "through a package"],
)
def test_circles(tmp_path: Path, files: dict[str, str], expected: list[list[str]]) -> None:
    root = package(tmp_path, files)
    assert check_imports.circles(check_imports.graph_of(root)) == expected
    assert check_imports.main([str(root)]) == (1 if expected else 0)
