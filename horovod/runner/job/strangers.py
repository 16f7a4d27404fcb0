"""Notices a program of which every rank runs by itself, because none calls hvd.init(): it trains as many models as
there are ranks, and all write to the same files. Pure.

Said only of Python programs: `horovodrun -np 4 hostname` is no mistake, nor is a line of Python to try something out
(`python -c`). What a shell script does cannot be seen.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from horovod.runner.plan.settings import LaunchSettings

FIRST_LOOK = 60.0  # s after the start
_PYTHON = re.compile(r"(?:i?python|pypy)[\d.]*t?")
_SHELL = re.compile(r"(?:ba|da|k|z)?sh")
_ASSIGNMENT = re.compile(r"\w+=")  # for env
_HELP = "see the first lines of Horovod's README"


def runs_python(command: Sequence[str]) -> bool:
    """Does the command run a file or module of Python, as far as its words tell?"""
    for index, word in enumerate(command):
        name = "" if _ASSIGNMENT.match(word) else PurePosixPath(word).name
        if name == "horovodrun":  # whose ranks call it, in a job of their own
            return False
        if _PYTHON.fullmatch(name):
            return _runs_file(command[index + 1 :])
        if name.endswith(".py"):
            return True
        if _SHELL.fullmatch(name):
            return _shell_runs_python(command[index + 1 :])
    return False


def _runs_file(words: Sequence[str]) -> bool:
    """The words after `python`."""
    for word in words:
        if not word.startswith("-"):
            return True
        if word.startswith("-m"):
            return True
        if re.match(r"-[a-zA-Z]*[cVh]", word) or word in ("-", "--version", "--help"):
            return False
    return False


def _shell_runs_python(words: Sequence[str]) -> bool:
    """The words after `bash`: only those of -c can be read."""
    for index, word in enumerate(words[:-1]):
        if re.fullmatch(r"-[a-z]*c", word):
            lexer = shlex.shlex(words[index + 1], posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            try:
                return runs_python(list(lexer))
            except ValueError:  # a quotation that does not end
                return False
        if not word.startswith("-"):
            return False
    return False


def users_command(settings: LaunchSettings, payload: bytes | None) -> list[str]:
    """None where it is ours, or where somebody with a debugger takes his time."""
    return [] if payload or settings.own_python or settings.debug_rank is not None else settings.command


class Strangers:
    """What is to be said of a job, and when."""

    def __init__(self, size: int, command: Sequence[str]) -> None:
        """`command`: what the user has started; empty for programs of ours."""
        self._size = size if runs_python(command) else 1
        self._look_at: float | None = None

    def started(self, now: float) -> None:
        """All ranks have been started."""
        if self._size > 1:
            self._look_at = now + FIRST_LOOK

    def next_time(self) -> float | None:
        """When to ask for `early`; None: not any more."""
        return self._look_at

    def early(self, now: float, called: bool) -> str:
        """The warning of the first minute, if its time has come and there is a reason. `called`: a rank has called
        hvd.init()."""
        if self._look_at is None or now < self._look_at:
            return ""
        self._look_at = None
        if called:
            return ""
        return (
            f"still starting: after {FIRST_LOOK:g} s no rank has called hvd.init() yet. Imports and data may take that "
            f"long; a program that never calls it runs as {self._size} copies that know nothing of each other ({_HELP})"
        )

    def late(self, called: bool) -> str:
        """What is to be said of a job that has exited normally."""
        if called or self._size == 1:
            return ""
        return (
            f"warning: no rank has called hvd.init(), so the same program ran {self._size} times, each copy by "
            f"itself; to train one model it has to call hvd.init() first ({_HELP})"
        )
