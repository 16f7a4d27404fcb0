"""tools/check_includes.py: rules of the floors, on made-up trees and on this repository."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "check_includes.py"


def check(root: Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.splitlines()


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_this_repository_keeps_to_its_floors() -> None:
    assert check(ROOT) == (0, [])


def test_includes_that_go_down_are_fine(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "core/base/a.h": "#include <vector>\n",
            "core/collectives/b.cc": '#include "base/a.h"\n#include "collectives/c.h"\n#include "c.h"\n',
            "core/collectives/d.cc": '#include "plan/p.h"\n',
            "core/engine/e.cc": '#include "transport/t.h"\n// #include "bindings/x.h"\n',
            "bindings/python/m.cc": '#include <nanobind/nanobind.h>\n#include "engine/e.h"\n',
        },
    )
    assert check(root) == (0, [])


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("core/base/a.h", '#include "transport/link.h"', "base may not include transport/link.h; it may use base"),
        ("core/plan/a.cc", '#include "transport/link.h"', "plan may not include transport/link.h; it may use base"),
        ("core/transport/a.h", '  #  include "plan/topology.h"', "transport may not include plan/topology.h"),
        ("core/collectives/a.cc", '#include "engine/engine.h"', "collectives may not include engine/engine.h"),
        ("core/engine/a.cc", '#include "bindings/python/x.h"', "engine may not include bindings/python/x.h"),
        (
            "core/agree/a.h",
            '#include "transport/segment.h"',
            "agree may not include transport/segment.h; it may use agree, base",
        ),
        (
            "core/agree/a.cc",
            "#include <mutex>",
            "agree is pure, without threads, clocks and I/O; <mutex> belongs to engine/",
        ),
        ("core/agree/a.cc", "#include <poll.h>", "agree is pure"),
        ("core/engine/a.cc", "#include <Python.h>", "no foreign header; Python.h"),
        ("core/backends/deep/a.cc", "#include <cuda_runtime.h>", "no foreign header; cuda_runtime.h"),
        ("core/base/a.h", "#include <torch/torch.h>", "no foreign header; torch/torch.h"),
        ("core/base/a.h", '#include "../engine/engine.h"', "leaves its folder"),
    ],
)
def test_an_offending_line_is_named(tmp_path: Path, file: str, line: str, expected: str) -> None:
    root = tree(tmp_path, {file: f"// a comment\n{line}\n"})
    status, lines = check(root)
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith(f"{file}:2: ")
    assert expected in lines[0]


def test_an_empty_tree_is_not_a_clean_one(tmp_path: Path) -> None:
    assert check(tmp_path)[0] == 2
