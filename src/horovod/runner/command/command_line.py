"""Split a command line into flags, which may be abbreviated, and the command. Pure.

argparse would interpret words of the command as flags of horovodrun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horovod.runner.base.errors import LaunchError
from horovod.runner.command import spelling
from horovod.runner.command.flags import FLAGS, Flag


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags with their full names, and the command.

    The command begins at the first word that is neither a flag nor a flag's value, or after `--`.

    Raises:
        LaunchError: A flag is unknown or an abbreviation is ambiguous. The message names the nearest flags.
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


def in_full(word: str) -> str:
    """Return the full name of a flag, which may be abbreviated to an unambiguous prefix. Raises LaunchError."""
    if spelling.is_flag(word):
        return word
    given, equals, value = word.partition("=")
    found = _beginning_with(given) if given.startswith("--") else {}
    if len(set(found.values())) == 1:
        return next(iter(found)) + equals + value
    if found:
        names = sorted(found)
        raise LaunchError(f"{given} is ambiguous: it could be {', '.join(names[:-1])} or {names[-1]}")
    clause = spelling.advice(word)
    raise LaunchError(f"unknown flag {given}{f'; {clause}' if clause else ''}")


def _beginning_with(given: str) -> Mapping[str, tuple[Flag | None, bool]]:
    """Return the long names with this prefix, and their meanings: names of the same flag have the same meaning."""
    known: dict[str, tuple[Flag | None, bool]] = {"--help": (None, True)}
    for flag in FLAGS:
        known.update(dict.fromkeys(flag.names, (flag, True)))
        known.update({"--no-" + name[2:]: (flag, False) for name in flag.names if flag.no})
    return {name: meaning for name, meaning in known.items() if name.startswith(given)}


def through_env(command: Sequence[str]) -> list[str]:
    """Return the command, started by `env` if `NAME=value` words precede it; empty if there are only such words."""
    bare = spelling.without_assignments(command)
    return ["env", *command] if bare and len(bare) < len(command) else bare
