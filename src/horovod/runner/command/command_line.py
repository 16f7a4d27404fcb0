"""Splitting of a command line into flags and the command. Flags can be abbreviated.

On its own, argparse would interpret the command's arguments as flags of horovodrun.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence

from horovod.runner.base.job_result import LaunchError
from horovod.runner.command.flags import FLAGS, Flag

# Flags of other launchers, without dashes, and the advice to show for them.
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
    "x": _PASSED,  # mpirun
}
_NUMBER = re.compile(r"(-np|-n|--num-proc=)\d+")
_PYTHON = re.compile(r"(i?python|pypy)[\d.]*t?")
_PLAIN_OPTION = re.compile(r"-[bBdEiIOPqsSuvx]+|-[WX].*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def spellings() -> tuple[list[str], list[str]]:
    """Return all flag names, and the one-letter names that accept a value without a space (`-p22`)."""
    names = ["-h", "--help"]
    letters = []
    for flag in FLAGS:
        names += flag.names
        letters += [name for name in flag.names if len(name) == 2 and flag.value]
        names += ["--no-" + name[2:] for name in flag.names if flag.no]
    return names, letters


def is_flag(argument: str) -> bool:
    """Return True if `argument` is a flag, with or without its value."""
    names, letters = spellings()
    if argument.partition("=")[0] in names:
        return True
    # Accept -n4, but reject -np4 as a misspelling of -np 4: a value directly after -n must be a number.
    return argument[:2] in letters and (argument[:2] != "-n" or argument[2:].isdecimal())


def advice(argument: str) -> str:
    """Suggest a replacement for an unknown flag. Return an empty string if there is none."""
    given = argument.partition("=")[0]
    bare = given.lstrip("-").replace("_", "-").lower()
    if bare in ELSEWHERE:
        return ELSEWHERE[bare]
    near = _near(given, bare)
    return f"did you mean {near}?" if near else ""


def _near(flag: str, bare: str) -> str:
    names, _ = spellings()
    # Known flags that match the unknown flag except for leading dashes
    same = [name for name in names if name.lstrip("-") == bare]
    if same:
        return same[0]
    import difflib  # Import lazily, because only error messages need difflib.

    near = difflib.get_close_matches("--" + bare if flag.startswith("--") else flag, names, 1, 0.7)
    return near[0] if near else ""


def without_assignments(command: Sequence[str]) -> list[str]:
    """Return the command without its leading variable assignments (`NAME=value`)."""
    count = next((i for i, word in enumerate(command) if not _ASSIGNMENT.match(word)), len(command))
    return list(command[count:])


def assigned(command: Sequence[str]) -> list[str]:
    """Return the names of the variables that are assigned before the command (`NAME=value`)."""
    count = len(command) - len(without_assignments(command))
    return [word.partition("=")[0] for word in command[:count]]


def moved_number(command: Sequence[str]) -> str:
    """Return `-np` and its value if the user wrote them after the command's name, or else an empty string."""
    for index, word in enumerate(command[1:], 1):
        if word in ("-np", "-n", "--num-proc") and "".join(command[index + 1 : index + 2]).isdecimal():
            return f"{word} {command[index + 1]}"
        if _NUMBER.fullmatch(word):
            return word
    return ""


def missing_script(command: Sequence[str]) -> str:
    """Return the path of the Python script that the command runs, if it is missing on this machine.

    The result is empty if the script exists, or if the command does not show which file Python runs.
    """
    program = without_assignments(command[1:] if command[:1] == ["env"] else command)
    if not program or not _PYTHON.fullmatch(os.path.basename(program[0])):
        return ""
    index = 1
    while index < len(program) and program[index].startswith("-"):
        # With -c or -m, Python runs no script file. After an unknown option, an argument might be the option's value.
        if not _PLAIN_OPTION.fullmatch(program[index]):
            return ""
        index += 2 if program[index] in ("-W", "-X") else 1
    return program[index] if index < len(program) and not os.path.exists(program[index]) else ""


def near_file(path: str) -> str:
    """Suggest a file in the same folder with a similar name. Return an empty string if there is none."""
    import difflib  # Import lazily, because only error messages need difflib.

    folder, name = os.path.split(path)
    try:
        near = difflib.get_close_matches(name, os.listdir(folder or "."), 1, 0.75)
    except OSError:
        return ""
    return f"; did you mean {os.path.join(folder, near[0])}?" if near else ""


def refusal_of_script(arguments: Sequence[str], command: Sequence[str]) -> str:
    """Return an error message if the command is a Python script that cannot be executed directly.

    Args:
        arguments: Whole command line, including the command at its end.
        command: Command that each rank runs, with its arguments.

    Returns:
        Message with a corrected command line, or an empty string if the script can be executed or is not a Python
        script.
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
        return ""  # Do not report an error, because the script may exist on other hosts.
    if not os.access(name, os.X_OK):
        return "this script is not executable"
    if "/" not in name:
        return "a command without a directory is only searched for on PATH"
    try:
        with open(name, "rb") as file:
            return "" if file.read(2) == b"#!" else "it does not begin with `#!`, so it cannot be run as a command"
    except OSError:
        return ""


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the command line into flags with their full names, and the command.

    The command starts after `--`, or at the first argument that is neither a flag nor a flag's value.

    Raises:
        LaunchError: If a flag is unknown, or an abbreviation is ambiguous. The message suggests similar flags.
    """
    values = {name: flag.nargs if flag.value else 0 for flag in FLAGS for name in flag.names}
    flags: list[str] = []
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return flags, list(arguments[index + 1 :])
        if not word.startswith("-") or word == "-":
            break
        word = in_full(word)
        end = index + 1 + values.get(word, 0)
        flags += [word, *arguments[index + 1 : end]]
        index = end
    return flags, list(arguments[index:])


def in_full(argument: str) -> str:
    """Expand an abbreviated flag to its full name. Raises LaunchError if it is unknown or ambiguous."""
    if is_flag(argument):
        return argument
    flag, equals, value = argument.partition("=")
    found = _beginning_with(flag) if flag.startswith("--") else {}
    if len(set(found.values())) == 1:
        return next(iter(found)) + equals + value
    if found:
        names = sorted(found)
        raise LaunchError(f"{flag} is ambiguous: it could be {', '.join(names[:-1])} or {names[-1]}")
    clause = advice(argument)
    raise LaunchError(f"unknown flag {flag}{f'; {clause}' if clause else ''}")


def _beginning_with(prefix: str) -> Mapping[str, tuple[Flag | None, bool]]:
    """Return the long flag names that start with `prefix`.

    Each name is mapped to its flag and to a boolean, which is False for the negated form (`--no-...`).
    """
    known: dict[str, tuple[Flag | None, bool]] = {"--help": (None, True)}
    for flag in FLAGS:
        known.update(dict.fromkeys(flag.names, (flag, True)))
        known.update({"--no-" + name[2:]: (flag, False) for name in flag.names if flag.no})
    return {name: meaning for name, meaning in known.items() if name.startswith(prefix)}


def through_env(command: Sequence[str]) -> list[str]:
    """Return the command, prefixed with `env` if it begins with assignments (`NAME=value`).

    The result is empty if there is no command after the assignments.
    """
    bare = without_assignments(command)
    return ["env", *command] if bare and len(bare) < len(command) else bare


def with_auto(command: Sequence[str], lr_scale: str) -> list[str]:
    """Insert `-m horovod.auto` into the command `python train.py`, which makes the script train on all ranks."""
    arguments = list(command)
    at = len(arguments) - len(without_assignments(arguments[1:])) if arguments[0] == "env" else 0
    if at < len(arguments) and _PYTHON.fullmatch(os.path.basename(arguments[at])):
        at += 1
        while at < len(arguments) and _PLAIN_OPTION.fullmatch(arguments[at]):
            at += 2 if arguments[at] in ("-W", "-X") else 1
        if at < len(arguments) and (arguments[at] == "-m" or not arguments[at].startswith("-")):
            return [*arguments[:at], "-m", "horovod.auto", "--lr-scale", lr_scale, *arguments[at:]]
    raise LaunchError(
        f"--auto must precede a command such as `python train.py`, got {shlex.join(arguments)!r}; name the interpreter "
        "and the script"
    )
