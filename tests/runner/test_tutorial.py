"""The scripts and commands of docs/tutorial.md run and print what the page shows."""

import shlex
import subprocess

import pytest

from tests.documents import blocks

pytest.importorskip("torch")

EXPECTED = {
    "horovodrun -np 2 python train.py": (0, ["step 100: loss", "2 workers, 100 steps"]),
    'horovodrun -np 2 --chaos "kill rank=1 step=50" python train.py': (137, ["failed first", "SIGKILL"]),
    "horovodrun -np 2 --stall-check-warning-time-seconds 5 --stall-check-shutdown-time-seconds 10 python hang.py": (
        1,
        ["rank 1 is at hang.py:15 (`time.sleep(1000)  # the mistake`)"],
    ),
    "horovodrun --explain .": None,
    "horovodrun -np 2 --dashboard python train.py": None,
    "horovodrun -np 3 --min-np 2 --host-discovery-script ./hosts.sh "
    '--chaos "kill rank=1 step=50" --chaos-report python elastic.py': (
        0,
        ["training with 2 ranks from step 50", "done after step 100", "1 recovered from"],
    ),
}
"""Exit code and parts of the output of each command; None: tested elsewhere."""


@pytest.mark.heavy
def test_the_tutorial_shows_the_documented_output(tmp_path):
    found = [block for block in blocks() if block.where.startswith("docs/tutorial.md:")]
    if not found:
        pytest.skip("the documents are not here")
    train, mistake, elastic = (block.text for block in found if block.language == "python")
    (hosts,) = (block.text for block in found if block.text.startswith("#!/bin/sh"))
    loop, body = train.split("    x = torch.randn", 1)
    (tmp_path / "train.py").write_text(train)
    (tmp_path / "hang.py").write_text(f"{loop}{mistake}    x = torch.randn{body}")
    (tmp_path / "elastic.py").write_text(elastic)
    (tmp_path / "hosts.sh").write_text(hosts)
    (tmp_path / "hosts.sh").chmod(0o755)
    commands = [block.text.strip() for block in found if block.text.startswith("horovodrun")]
    assert [command for command in commands if not command.startswith("horovodrun: ")] == list(EXPECTED)
    for command, expected in EXPECTED.items():
        if expected is None:
            continue
        argv = shlex.split(command)
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
        output = done.stdout + done.stderr
        code, parts = expected
        assert done.returncode == code, output
        assert [part for part in parts if part not in output] == [], output
