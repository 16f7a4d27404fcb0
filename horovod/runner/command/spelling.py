"""What somebody may have meant who wrote an unknown flag, or a command that cannot be started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence

from horovod.runner.command.flags import FLAGS

# Flags of other launchers, and of the habit, without dashes: what does the same here.
_ALL = "use -np N, the number of processes in all (-H host:N,... says how many on which host)"
_HOSTS = "use -H host:N,... or --hostfile FILE, which name the hosts"
_PASSED = "the environment is passed on by itself (--env-allow and --env-deny limit that)"
_MEET = "ranks find one another by themselves"
_GPUS = "did you mean --gpus-per-worker N? Without it all workers of a host see all its GPUs"
ELSEWHERE = {
    "nproc-per-node": _ALL,  # torchrun
    "nproc": _ALL,
    "node-rank": _MEET,
    "rdzv-endpoint": _MEET,
    "nnodes": _HOSTS,
    "master-addr": _MEET,
    "master-port": _MEET,
    "num-processes": _ALL,  # accelerate
    "num-gpus": _ALL,  # deepspeed
    "gpus": _ALL,
    "gpus-per-task": _GPUS,  # srun
    "gpus-per-node": _GPUS,
    "gpu-bind": "did you mean --gpus-per-worker N, or --gpu-affinity for the CPUs near them?",
    "output-dir": "did you mean --output-filename DIR?",
    "ntasks": _ALL,  # srun
    "ntasks-per-node": _ALL,
    "nodes": _HOSTS,
    "ppn": _ALL,  # mpiexec
    "machinefile": _HOSTS,
    "genvlist": _PASSED,
    "x": _PASSED,  # mpirun -x NAME
}
_NUMBER = re.compile(r"(-np|-n|--num-proc=)\d+")
_PYTHON = re.compile(r"(i?python|pypy)[\d.]*t?")
_PLAIN_OPTION = re.compile(r"-[bBdEiIOPqsSuvx]+|-[WX].*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def spellings() -> tuple[list[str], list[str]]:
    """All names of flags, and those of one letter behind which their value may stand (`-p22`)."""
    names = ["-h", "--help"]
    letters = []
    for flag in FLAGS:
        names += flag.names
        letters += [name for name in flag.names if len(name) == 2 and flag.value]
        names += ["--no-" + name[2:] for name in flag.names if flag.no]
    return names, letters


def is_flag(word: str) -> bool:
    """Is the word a flag, alone, with =value or, with one letter, with its value behind it?"""
    names, letters = spellings()
    if word.partition("=")[0] in names:
        return True
    return word[:2] in letters and (word[:2] != "-n" or word[2:].isdecimal())  # -np4 is no p4 for -n


def advice(word: str) -> str:
    """What to write instead of an unknown flag, as a clause; empty: no idea."""
    given = word.partition("=")[0]
    bare = given.lstrip("-").replace("_", "-").lower()
    if bare in ELSEWHERE:
        return ELSEWHERE[bare]
    near = _near(given, bare)
    return f"did you mean {near}?" if near else ""


def _near(given: str, bare: str) -> str:
    names, _ = spellings()
    same = [name for name in names if name.lstrip("-") == bare]  # other dashes
    if same:
        return same[0]
    import difflib  # not at the start of every job

    near = difflib.get_close_matches("--" + bare if given.startswith("--") else given, names, 1, 0.7)
    return near[0] if near else ""


def without_assignments(command: Sequence[str]) -> list[str]:
    """The command behind the `NAME=value`s in front of it."""
    count = next((i for i, word in enumerate(command) if not _ASSIGNMENT.match(word)), len(command))
    return list(command[count:])


def assigned(command: Sequence[str]) -> list[str]:
    """The variables that are set in front of the command."""
    count = len(command) - len(without_assignments(command))
    return [word.partition("=")[0] for word in command[:count]]


def moved_number(command: Sequence[str]) -> str:
    """The flag -np with its value if it stands among the words of the command; empty: it does not."""
    for index, word in enumerate(command[1:], 1):
        if word in ("-np", "-n", "--num-proc") and "".join(command[index + 1 : index + 2]).isdecimal():
            return f"{word} {command[index + 1]}"
        if _NUMBER.fullmatch(word):
            return word
    return ""


def missing_script(command: Sequence[str]) -> str:
    """The file that Python is to run, if there is none of this name on this machine; empty: there is, or it is not
    known which."""
    program = without_assignments(command[1:] if command[:1] == ["env"] else command)
    if not program or not _PYTHON.fullmatch(os.path.basename(program[0])):
        return ""
    index = 1
    while index < len(program) and program[index].startswith("-"):
        if not _PLAIN_OPTION.fullmatch(program[index]):  # -c, -m, or one that we do not know
            return ""
        index += 2 if program[index] in ("-W", "-X") else 1
    return program[index] if index < len(program) and not os.path.exists(program[index]) else ""


def near_file(path: str) -> str:
    """A file beside `path` whose name resembles it, as a clause; empty: none."""
    import difflib  # not at the start of every job

    folder, name = os.path.split(path)
    try:
        near = difflib.get_close_matches(name, os.listdir(folder or "."), 1, 0.75)
    except OSError:
        return ""
    return f"; did you mean {os.path.join(folder, near[0])}?" if near else ""


def refusal_of_script(arguments: Sequence[str], command: Sequence[str]) -> str:
    """Why a Python script cannot be started as a command, with the line that starts it; empty: it can, or it is none.

    `arguments`: the whole command line, which ends with `command`.
    """
    program = without_assignments(command)
    name = program[0] if program else ""
    if not name.endswith((".py", ".pyw")):
        return ""
    if "/" not in name and shutil.which(name) is not None:
        return ""
    reason = _reason(name)
    if not reason:
        return ""
    python = "python" if shutil.which("python") or not shutil.which("python3") else "python3"
    before = list(arguments[: len(arguments) - len(program)])
    return f"{name}: {reason}; did you mean `{shlex.join(['horovodrun', *before, python, *program])}`?"


def _reason(name: str) -> str:
    if not os.path.isfile(name):
        return ""  # perhaps there is one on other hosts
    if not os.access(name, os.X_OK):
        return "this script is not executable"
    if "/" not in name:
        return "a command without a directory is only searched for on PATH"
    try:
        with open(name, "rb") as file:
            return "" if file.read(2) == b"#!" else "it does not begin with `#!`, so it cannot be run as a command"
    except OSError:
        return ""
