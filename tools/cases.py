"""Run a folder of small programs that reproduce faults, and report the outcome of each.

    python -m tools.cases FOLDER [--only TEXT] [--timeout SECONDS] [--commands FILE] [--json FILE]

A case is a ``.py`` or ``.sh`` file. Its header may say how to run it, in a line such as

    Run: KERAS_BACKEND=tensorflow|torch horovodrun -np 2 python case.py first|second [optional]

Alternatives (``a|b``) are run one after another, ``KERAS_BACKEND=...`` stands for all backends, ``FOLDER`` for an empty
folder, and words in brackets are left out. Without such a line, a shell file runs as ``bash FILE`` and a Python file as
``horovodrun -np 2 python FILE``, or as ``python FILE`` if it starts its jobs itself. Modules that other cases import
are not cases. ``--commands`` names a TOML file with a list of commands for each file name that the header does not
describe fully.

A case fails if its exit code is not 0, if it prints a line with the word FAILS, or if it does not end in time. The
output of a security case must be judged by the reader: the report shows the last lines of each case.
"""

import argparse
import ctypes
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

BACKENDS = "tensorflow|torch|jax"
HEADER_LINES = 12
PLACEHOLDERS = ("/opt/venv", "/tmp/case/venv", "/tmp/case/ubin")
"""Folders that cases use for the environment under test; the last holds its programs."""
NO_OP = "import numpy, horovod.numpy as hvd\nhvd.init()\nhvd.allreduce(numpy.ones(4))\nprint('ran on', hvd.size())\n"
"""Contents of ``/tmp/case/nop.py``, which cases about environments run."""


@dataclass
class Outcome:
    """Outcome of one command.

    ``outcome`` is ``ok``, ``fails`` (the output says so), ``error`` (nonzero exit code) or ``timeout``.
    """

    case: str
    command: str
    result: str
    code: int | None
    seconds: float
    lines: list[str] = field(default_factory=list)


def commands_of(path: Path) -> list[str]:
    """Return the shell commands in a case's header, without duplicates."""
    text = path.read_text(errors="replace")
    default = f"bash {path.name}" if path.suffix == ".sh" else f"{launcher_of(text)}python {path.name}"
    header = text.splitlines()[:HEADER_LINES]
    line = next((m[1] for line in header if (m := re.match(r"#?\s*Run\b[^:]*:\s*(.*)", line))), default)
    if path.name not in line:
        line = default
    # Remove the remark in parentheses that can follow a command.
    line = re.sub(r"\s{2,}\(.*\)$", "", line)
    while "[" in line:
        line, before = re.sub(r"\s*\[[^\[\]]*\]", "", line), line
        if line == before:
            break
    argv = []
    for argument in line.replace("KERAS_BACKEND=...", f"KERAS_BACKEND={BACKENDS}").split():
        name, equals, value = argument.rpartition("=")
        alternatives = value.split("|") if re.fullmatch(r"[\w.-]+(\|[\w.-]+)+", value) else [value]
        argv.append([name + equals + each for each in alternatives])
    return list(dict.fromkeys(" ".join(choice) for choice in itertools.product(*argv)))


def launcher_of(text: str) -> str:
    """Return the launcher command for a Python case whose header contains no command.

    The result is "" if the case starts horovodrun itself or uses no ranks.
    """
    code = re.sub(r'\A\s*""".*?"""|^\s*#[^\n]*$', "", text, flags=re.S | re.M)
    return "" if "horovodrun" in code or not re.search(r"^\s*hvd\.init\(", code, re.M) else "horovodrun -np 2 "


def prepare(folder: Path, scratch: Path) -> None:
    """Copy the test cases to ``scratch``, and fill in their placeholders."""
    shutil.copytree(folder, scratch / "cases")
    (scratch / "nop.py").write_text(NO_OP)
    for path in (scratch / "cases").rglob("*"):
        if path.suffix in (".py", ".sh"):
            path.chmod(0o755)
            text = path.read_text(errors="surrogateescape")
            for placeholder, target in zip(PLACEHOLDERS, (sys.prefix, sys.prefix, f"{sys.prefix}/bin"), strict=True):
                text = text.replace(placeholder, target)
            path.write_text(text.replace("/tmp/case", str(scratch)), errors="surrogateescape")


def run(case: Path, name: str, command: str, scratch: Path, timeout: float) -> Outcome:
    """Run one command in the case's folder, then kill all processes that it started."""
    empty = tempfile.mkdtemp(dir=scratch)
    paths = f"{sys.prefix}/bin{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": paths, "BIN": f"{sys.prefix}/bin", "H": f"{sys.prefix}/bin"}
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["bash", "-c", re.sub(r"\bFOLDER\b", shlex.quote(empty), command)],
            cwd=case.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.monotonic() - began
        end_session(process)
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    return Outcome(name, command, judge(code, lines), code, round(seconds, 1), key_lines(lines))


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a command's process group, then its orphans, which have become children of this process."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    deadline = time.monotonic() + 10
    while (orphans := children()) and time.monotonic() < deadline:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def children() -> list[int]:
    """Return the process ids of this process's children."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def judge(code: int | None, lines: list[str]) -> str:
    """Classify a run by its exit code and its output.

    The exit code is None if the run was killed at the time limit.
    """
    if code is None:
        return "timeout"
    if any(re.search(r"\bFAILS\b", line) for line in lines):
        return "fails"
    return "ok" if code == 0 else "error"


def key_lines(lines: list[str], most: int = 12) -> list[str]:
    """Return up to ``most`` output lines that contain FAILS or, if there are none, the last lines of the output."""
    chosen = [line for line in lines if re.search(r"\bFAILS\b", line)] or [line for line in lines if line.strip()]
    return [line[:400] for line in chosen[-most:]]


def cases_in(folder: Path, only: str, commands: dict[str, list[str]]) -> list[tuple[Path, list[str]]]:
    """Return the cases of a folder whose path contains ``only``, each with its commands.

    The commands are those in ``given`` if the case is listed there, and otherwise those in the case's header.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".sh")]
    imported = {(p.parent, m) for p in files for m in re.findall(r"^import (\w+)", p.read_text(errors="replace"), re.M)}
    return [
        (path, commands.get(path.name, commands_of(path)))
        for path in files
        if (path.parent, path.stem) not in imported and only in str(path.relative_to(folder))
    ]


def main() -> int:
    """Run the cases and print a line per command. Return exit code 1 unless all are ``ok``."""
    parser = argparse.ArgumentParser(prog="python -m tools.cases", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="run the cases whose path contains this text")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one command (default: 120)")
    parser.add_argument("--commands", type=Path, help="TOML file: commands by file name; an empty list skips it")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        parser.error(f"FOLDER must be a folder of cases, got {str(arguments.folder)!r}")
    overrides = tomllib.loads(arguments.commands.read_text()) if arguments.commands else {}
    # PR_SET_CHILD_SUBREAPER makes a case's orphaned processes children of this process.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="cases-") as temporary:
        scratch = Path(temporary)
        # Let other users read the folder, because some cases run commands as another user.
        scratch.chmod(0o755)
        prepare(arguments.folder, scratch)
        for path, commands in cases_in(scratch / "cases", arguments.only, overrides):
            for command in commands:
                name = str(path.relative_to(scratch / "cases"))
                outcomes.append(run(path, name, command, scratch, arguments.timeout))
                show(outcomes[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    counts = {result: sum(o.result == result for o in outcomes) for result in ("ok", "fails", "error", "timeout")}
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    return 0 if outcomes and counts["ok"] == len(outcomes) else 1


def show(outcome: Outcome) -> None:
    """Print an outcome: a headline, followed by the relevant lines of output."""
    print(f"{outcome.result:8}{outcome.seconds:7.1f} s  {outcome.case}  [{outcome.command}]  code {outcome.code}")
    for line in outcome.lines:
        print(f"          | {line}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
