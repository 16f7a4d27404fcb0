"""tools/check_includes.py checks the layering rules; `make lint` runs it on this repository."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(root, **files):
    """Return (exit status, lines) for a tree of files by path, without extension, with "__" for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".cc").write_text(text, encoding="utf-8")
    command = [sys.executable, ROOT / "tools" / "check_includes.py", root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.splitlines()


def test_includes_of_lower_layers_are_accepted(tmp_path):
    lower = '#include "base/a.h"\n#include "collectives/c.h"\n#include "c.h"\n'
    assert check(tmp_path, core__collectives__b=lower, core__base__a="#include <vector>\n") == (0, [])


@pytest.mark.parametrize(
    ("layer", "line", "expected"),
    [
        ("base", '#include "transport/link.h"', "base may not include transport/link.h; it may use base"),
        ("agree", "#include <mutex>", "agree is pure, without threads, clocks and I/O; <mutex> belongs to engine/"),
        ("engine", "#include <Python.h>", "no foreign header; Python.h"),
        ("base", '#include "../engine/engine.h"', "leaves its folder"),
    ],
)
def test_an_offending_line_is_named(tmp_path, layer, line, expected):
    status, [found] = check(tmp_path, **{f"core__{layer}__a": f"// a comment\n{line}\n"})
    assert status == 1
    assert found.startswith(f"core/{layer}/a.cc:2: ")
    assert expected in found
