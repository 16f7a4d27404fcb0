"""``python -m tools.cases`` runs each case as its header says and tells which ones failed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cases import commands_of, judge, launcher_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "text", "commands"),
    [
        ("a.py", "import horovod.numpy as hvd\nhvd.init()\n", ["horovodrun -np 2 python a.py"]),
        ("a.py", "print(1)\n", ["python a.py"]),
        ("a.sh", "echo\n", ["bash a.sh"]),
        (
            "a.py",
            '"""Text.\nRun: X=1 python a.py one|two [rest [more]]\n"""',
            ["X=1 python a.py one", "X=1 python a.py two"],
        ),
        ("a.py", "# Run as root:  python a.py   (needs 4 GiB)\n", ["python a.py"]),
        ("a.py", "# Run: another file\n", ["python a.py"]),
    ],
)
def test_commands_of_a_header(tmp_path, name, text, commands):
    (tmp_path / name).write_text(text)
    assert commands_of(tmp_path / name) == commands


def test_backends_are_alternatives(tmp_path):
    (tmp_path / "a.py").write_text("# Run: KERAS_BACKEND=... python a.py x|y\n")
    found = commands_of(tmp_path / "a.py")
    assert len(found) == 6
    assert found[0] == "KERAS_BACKEND=tensorflow python a.py x"


def test_a_case_that_starts_jobs_itself_has_no_launcher():
    assert launcher_of("hvd.init()\nsubprocess.run(['horovodrun'])\n") == ""
    assert launcher_of("# horovodrun -np 2 python FILE\nhvd.init()\n") == "horovodrun -np 2 "


@pytest.mark.parametrize(
    ("code", "lines", "result"),
    [(0, ["holds"], "ok"), (0, ["x FAILS silently"], "fails"), (3, [], "error"), (None, ["FAILS"], "timeout")],
)
def test_judge(code, lines, result):
    assert judge(code, lines) == result


def test_a_folder_of_cases(tmp_path):
    cases = tmp_path / "cases"
    cases.mkdir()
    (cases / "kit.py").write_text("def helper(): pass\n")
    (cases / "good.py").write_text("import kit\nprint('/tmp/case')\n")
    (cases / "hangs.py").write_text("import subprocess\nsubprocess.run(['sleep', '1000'])\n")
    (cases / "wrong.sh").write_text("echo it FAILS\n")
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "tools.cases", str(cases), "--timeout", "5", "--json", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1, ended.stderr
    assert {o["case"]: o["result"] for o in json.loads(out.read_text())} == {
        "good.py": "ok",
        "hangs.py": "timeout",
        "wrong.sh": "fails",
    }
    assert "1 ok, 1 fails, 0 error, 1 timeout" in ended.stdout
    assert "/tmp/case\n" not in ended.stdout  # the placeholder became a scratch folder


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    command = [sys.executable, "-m", "tools.cases", str(tmp_path / "none")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "FOLDER must be a folder of cases" in ended.stderr
