"""Launcher commands in README.md and docs work, and every program in the documents is accounted for."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from horovod.runner.command import cli
from tests.documents import ROOT, blocks, programs

# Definitions that the programs leave to the reader.
AROUND = {"a function": ("", "\nprint(results)\n"), "an exception": ("\ndef work():\n    open('/nowhere')\n\n", "")}
WORDS = {"...": ["-np", "2", "python", "train.py"]}
"""Replacements for parts that a command leaves out."""

DRAWN = ("text", "mermaid", "{eval-rst}")
SHELL = ("", "bash", "sh", "console")
FOLDERS = "torch|distributed|tensorflow|jax|numpy|mxnet|ray|spark|launchers?"
"""Folders of tests that run programs of the documents."""
OUTSIDE = ("pip", "export", "cd")
"""Commands of other software that need no comment."""


def test_every_program_is_run_or_has_a_reason():
    """The tests of tests/torch, tensorflow, jax and so on check that they know the programs assigned to them."""
    wrong = [
        f"{block.where}: <!-- run: FOLDER: NAME --> or <!-- not run: WHY --> stands before it, see tests/documents.py"
        for block in blocks()
        if block.language not in (*SHELL, *DRAWN) and not re.fullmatch(rf"run: ({FOLDERS}): .+|not run: .+", block.mark)
    ]
    marks = [block.mark for block in blocks() if block.mark.startswith("run: ")]
    assert not wrong
    assert len(marks) == len(set(marks)), f"two programs of one name: {marks}"


@pytest.mark.heavy
def test_the_programs_of_horovod_run(tmp_path):
    pytest.importorskip("torch")
    found = programs("launcher")
    assert set(found) == set(AROUND)
    text = "".join(before + found[name].text + after for name, (before, after) in AROUND.items())
    (tmp_path / "program.py").write_text(text.replace("num_proc=4", "num_proc=2"))
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results, filename, _, *trace = done.stdout.splitlines()
    assert re.fullmatch(r"\[\(0, 0\.05\d*\), \(1, 0\.05\d*\)\]", results), done.stdout
    assert filename == "/nowhere"
    assert "FileNotFoundError" in "\n".join(trace)


def commands():
    """Return (location, words) of each command in a block without a comment."""
    for block in blocks():
        if block.language in SHELL and not block.mark:
            lines = [line for line in block.text.splitlines() if line.strip() and not line.startswith("#")]
            for line in lines:
                if block.language == "console" or lines[0].startswith("$ "):
                    if not line.startswith("$ "):
                        continue  # output
                    line = line.removeprefix("$ ")
                yield block.where, shlex.split(re.sub(r"^(\w+=\S+ )*", "", line), comments=True)


def complaint(argv):
    """Return the error in a command, or an empty string."""
    if argv[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return "" if argv[1] in targets or "=" in argv[1] else f"no target {argv[1]} in the Makefile"
    if argv[:2] == ["python", "-m"]:
        main = Path(*argv[2].split("."), "__main__.py")
        return "" if (ROOT / "src" / main).exists() or (ROOT / main).exists() else f"no module {argv[2]}"
    if argv[0] == "python":
        return "" if "/" not in argv[1] or (ROOT / argv[1]).exists() else f"no file {argv[1]}"
    return "" if argv[0] in OUTSIDE else "a comment before it says whether it is run, see tests/documents.py"


def test_commands_are_understood(monkeypatch):
    """They are parsed and checked without being started."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    wrong, seen = [], 0
    for page, argv in commands():
        if argv[0] == "horovodrun":
            seen += 1
            if {"--help", "--completion"} & set(argv):
                continue
            namespace, argv = cli.parse([each for argument in argv[1:] for each in WORDS.get(argument, [argument])])
            if namespace.doctor or namespace.explain or namespace.check_build or namespace.jsrun:
                continue
            assert cli.settings(namespace, argv, {}).command, page
            if namespace.benchmark:
                continue
        if text := complaint(argv):
            wrong.append(f"{page}: {' '.join(argv)}: {text}")
    assert not wrong
    assert seen > 10


def pages():
    """Return the text of README.md and of all pages of docs, by name."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(page.relative_to(ROOT)): page.read_text() for page in found}


def test_no_page_installs_the_original_project():
    """The package index has the original project under this name."""
    commands = {name: re.findall(r"pip install '?horovod\b(?!==V)[^`\n]*", text) for name, text in pages().items()}
    assert commands.pop("README.md") == ["pip install horovod"], "which says so"
    assert {name: found for name, found in commands.items() if found} == {}
