"""Each check of `make lint` in tools/check_*.py finds what it is for; `make lint` runs them on this repository."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def check(name: str, root: Path, files: dict[str, str]) -> tuple[int, str]:
    """Write files by path, and return the exit status and output of a check of that folder."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    command = [sys.executable, TOOLS / f"check_{name}.py", root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": "import pack.b", "b.py": "import os"}, None),
        ({"a.py": "import pack.b", "b.py": "def f():\n    from pack import a"}, "pack.a"),
        ({"a.py": "from pack.c import x", "c/__init__.py": "from .b import x", "c/b.py": "import pack.a"}, "pack.c.b"),
    ],
)
def test_circular_imports(tmp_path, files, expected):
    status, output = check("imports", tmp_path / "pack", {"__init__.py": "", **files})
    assert (status, expected is None or expected in output) == (1 if expected else 0, True)


@pytest.mark.parametrize(
    ("layer", "line", "expected"),
    [
        ("collectives", '#include "base/a.h"', None),
        ("base", '#include "transport/link.h"', "base may not include transport/link.h; it may use base"),
        ("agree", "#include <mutex>", "agree is pure, without threads, clocks and I/O; <mutex> belongs to engine/"),
        ("engine", "#include <Python.h>", "no foreign header; Python.h"),
        ("base", '#include "../engine/engine.h"', "leaves its folder"),
    ],
)
def test_includes(tmp_path, layer, line, expected):
    files = {f"core/{layer}/a.cc": f"// a comment\n{line}\n", "core/base/b.cc": "#include <vector>\n"}
    status, output = check("includes", tmp_path, files)
    assert status == (1 if expected else 0)
    assert expected is None or (f"core/{layer}/a.cc:2: " in output and expected in output)


@pytest.fixture
def load(monkeypatch):
    """Return a function that imports a check by name."""
    monkeypatch.syspath_prepend(TOOLS)
    return lambda name: __import__(f"check_{name}")


PATH = "import sys; sys.path[:] = [p for p in sys.path if p]; "


@pytest.mark.parametrize(
    ("function", "text", "found"),
    [
        ("in_python", 'run([sys.executable, "-m", "horovod.timeline"])', [1]),
        ("in_python", 'run([python, "-c", code])', [1]),
        ("in_python", 'run([sys.executable, *boot.arguments("horovod.timeline")])', []),
        ("in_python", "run([sys.executable, str(script)])", []),
        ("in_text", "command:\n- python\n- -m\n- horovod.x", [3]),
        ("in_text", "x=$(python - <<'PY'\nimport os\nPY\n)", [1]),
        ("in_text", f"x=$(python - <<'PY'\n{PATH}\nimport os\nPY\n)", []),
        ("in_text", 'CMD ["python", "-c", "import horovod._core"]', [1]),
        ("in_text", 'CMD ["python", "-I", "-c", "import horovod._core"]', []),
    ],
)
def test_unsafe_starts(load, function, text, found):
    assert list(getattr(load("starts"), function)(text)) == found


def test_budget_of_avoided_wording(load, tmp_path, capsys, monkeypatch):
    prose = load("prose")
    monkeypatch.setattr(prose, "RULES", {"old": prose._rule("in vain", "a verb", 1)})
    (tmp_path / "src").mkdir()
    for text, status, message in (
        ("# in vain\n", 0, ""),
        ("# in vain\n" * 2, 1, "at most 1 places allowed, got 2"),
        ("", 0, "lower its budget of 1"),
    ):
        (tmp_path / "src/a.py").write_text(text)
        assert prose.main([str(tmp_path)]) == status
        assert message in capsys.readouterr().out


def test_long_prose(load, tmp_path):
    long = "word " * 25
    (tmp_path / "A.md").write_text(f"{long}\n\n| {long} |\n\n- {'x' * 120}\n\n```\n{long}\n```\n")
    assert [place[:7] for place in load("prose").found(tmp_path)["long prose"]] == ["A.md:1:"]
