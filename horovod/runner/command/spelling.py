"""What somebody may have meant who wrote a flag that there is not, or a command that cannot be started."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence

from horovod.runner.command.flags import FLAGS

# Flags of other launchers, and of the habit, without dashes: what does the same here.
_ALL = "use -np N, the number of processes in all (-H host:N,... says how many on which host)"
_HOSTS = "use -H host:N,... or --hostfile FILE, which name the hosts"
_PASSED = "the environment is passed on by itself (--env-allow and --env-deny limit that)"
_MEET = "ranks find one another by themselves"
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
    "output-dir": "did you mean --output-filename DIR?",
    "ntasks": _ALL,  # srun
    "ntasks-per-node": _ALL,
    "nodes": _HOSTS,
    "ppn": _ALL,  # mpiexec
    "machinefile": _HOSTS,
    "genvlist": _PASSED,
    "x": _PASSED,  # mpirun -x NAME
    "timeline": "--timeline-filename is its name, but there are no timelines in this version yet",
}


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
    return word[:2] in letters and (word[:2] != "-n" or word[2:].isdigit())  # -np4 is no p4 for -n


def advice(word: str) -> str:
    """What to write instead of a flag that there is not, as a clause; empty: no idea."""
    given = word.partition("=")[0]
    bare = given.lstrip("-").replace("_", "-").lower()
    if bare in ELSEWHERE:
        return ELSEWHERE[bare]
    near = _near(given, bare)
    return f"did you mean {' or '.join(near)}?" if near else ""


def _near(given: str, bare: str) -> list[str]:
    names, _ = spellings()
    same = [name for name in names if name.lstrip("-") == bare]  # other dashes
    if same:
        return same[:1]
    longer = [name for name in names if given.startswith("--") and bare and name.startswith("--" + bare)]
    if 0 < len(longer) < 4:
        return longer
    import difflib  # not at the start of every job

    return difflib.get_close_matches("--" + bare if given.startswith("--") else given, names, 1, 0.7)


def refusal_of_script(arguments: Sequence[str], command: Sequence[str]) -> str:
    """Why a Python script cannot be started as a command, with the line that starts it; empty: it can, or it is none.

    `arguments`: the whole command line, which ends with `command`.
    """
    name = command[0] if command else ""
    if not name.endswith((".py", ".pyw")):
        return ""
    if "/" not in name and shutil.which(name) is not None:
        return ""
    reason = _reason(name)
    if not reason:
        return ""
    python = "python" if shutil.which("python") or not shutil.which("python3") else "python3"
    before = list(arguments[: len(arguments) - len(command)])
    return f"{name}: {reason}; did you mean `{shlex.join(['horovodrun', *before, python, *command])}`?"


def _reason(name: str) -> str:
    if not os.path.isfile(name):
        return ""  # perhaps there is one on other hosts
    if not os.access(name, os.X_OK):
        return "a script that is not executable is no command"
    if "/" not in name:
        return "a command without a directory is looked for on the PATH only"
    try:
        with open(name, "rb") as file:
            return "" if file.read(2) == b"#!" else "it does not begin with `#!`, so it is no command"
    except OSError:
        return ""
