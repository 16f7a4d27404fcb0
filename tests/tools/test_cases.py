"""``python -m tools.cases`` runs each case as its header says and reports which ones failed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cases import commands_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "text", "commands"),
    [
        ("a.py", "import horovod.numpy as hvd\nhvd.init()\n", ["horovodrun -np 2 python a.py"]),
        ("a.sh", "echo\n", ["bash a.sh"]),
        ("a.py", '"""Text.\nRun: X=1 python a.py one|two [rest]\n"""', ["X=1 python a.py one", "X=1 python a.py two"]),
    ],
)
def test_header_gives_the_commands_of_a_case(tmp_path, name, text, commands):
    (tmp_path / name).write_text(text)
    assert commands_of(tmp_path / name) == commands


@pytest.mark.heavy
def test_folder_of_cases_is_run_and_summarized(tmp_path):
    cases = {
        "good.py": "print('/tmp/case')\n",
        "hangs.py": "import subprocess\nsubprocess.run(['sleep', '1000'])\n",
        "wrong.sh": "echo it FAILS\n",
    }
    for name, text in cases.items():
        (tmp_path / name).write_text(text)
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "tools.cases", str(tmp_path), "--timeout", "5", "--json", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1, ended.stderr
    results = {case["case"]: case["result"] for case in json.loads(out.read_text())}
    assert results == {"good.py": "ok", "hangs.py": "timeout", "wrong.sh": "fails"}
    assert "1 ok, 1 fails, 0 error, 1 timeout" in ended.stdout
