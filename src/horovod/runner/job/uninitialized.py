"""Detection of programs whose ranks all run independently because none calls hvd.init(). Pure.

Such a job trains as many models as there are ranks, and all write the same files.

The warning is limited to Python programs: `horovodrun -np 4 hostname` is not a mistake, and neither is trying out a
line of Python with `python -c`. What a shell script runs is not known.
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
    """Return True if the command runs a Python file or module, as far as its words tell."""
    for index, word in enumerate(command):
        name = "" if _ASSIGNMENT.match(word) else PurePosixPath(word).name
        if name == "horovodrun":  # its ranks call hvd.init() in a job of their own
            return False
        if _PYTHON.fullmatch(name):
            return _runs_file(command[index + 1 :])
        if name.endswith(".py"):
            return True
        if _SHELL.fullmatch(name):
            return _shell_runs_python(command[index + 1 :])
    return False


def _runs_file(words: Sequence[str]) -> bool:
    """Return True if `python` with these arguments runs a file or module."""
    for word in words:
        if not word.startswith("-"):
            return True
        if word.startswith("-m"):
            return True
        if re.match(r"-[a-zA-Z]*[cVh]", word) or word in ("-", "--version", "--help"):
            return False
    return False


def _shell_runs_python(words: Sequence[str]) -> bool:
    """Return True if a shell with these arguments runs Python; only the text after -c can be read."""
    for index, word in enumerate(words[:-1]):
        if re.fullmatch(r"-[a-z]*c", word):
            lexer = shlex.shlex(words[index + 1], posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            try:
                return runs_python(list(lexer))
            except ValueError:  # an unclosed quotation
                return False
        if not word.startswith("-"):
            return False
    return False


def users_command(settings: LaunchSettings, payload: bytes | None) -> list[str]:
    """Return the command to check: empty for Horovod's own programs and for jobs with a debugged rank."""
    return [] if payload or settings.own_python or settings.debug_rank is not None else settings.command


class UninitializedJobCheck:
    """Warnings about a job without any call of hvd.init()."""

    def __init__(self, size: int, command: Sequence[str]) -> None:
        """Create the check. `command` is the user's command, empty for Horovod's own programs."""
        self._size = size if runs_python(command) else 1
        self._look_at: float | None = None

    def started(self, now: float) -> None:
        """Record that all ranks have been started."""
        if self._size > 1:
            self._look_at = now + FIRST_LOOK

    def next_time(self) -> float | None:
        """Return when to call `early`, or None if it need not be called any more."""
        return self._look_at

    def early(self, now: float, called: bool) -> str:
        """Return the warning after FIRST_LOOK seconds, or an empty string.

        Args:
            now: Time (monotonic, s).
            called: True if a rank has called hvd.init().
        """
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
        """Return the warning at the end of a job that ended normally, or an empty string."""
        if called or self._size == 1:
            return ""
        return (
            f"warning: no rank has called hvd.init(), so the same program ran {self._size} times, each copy by "
            f"itself; to train one model it has to call hvd.init() first ({_HELP})"
        )
