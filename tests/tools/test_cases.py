"""``python -m tools.cases`` runs each case as its header says and reports which ones failed."""

import pytest

from tools.cases import commands_of


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
