"""The outputs in docs/planner.md are those of the commands before them."""

from __future__ import annotations

import re
import runpy
import shlex

import pytest

from horovod.planner import __main__ as program
from tests.documents import ROOT

BLOCK = re.compile(r"^```console\n\$ (?P<command>[^\n]*)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs/planner.md").read_text())


@pytest.mark.parametrize(("command", "output"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_a_command_prints_what_the_page_shows(command: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = shlex.split(command)
    if argv[1:] == ["tools/planner_networks.py"]:
        runpy.run_path(str(ROOT / argv[1]))["main"]()
    else:
        assert argv[:3] == ["python", "-m", "horovod.planner"]
        assert program.main(argv[3:]) == 0
    assert capsys.readouterr().out.rstrip() == output.rstrip()


def test_the_page_has_outputs() -> None:
    assert len(BLOCKS) == 3
