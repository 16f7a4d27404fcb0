"""Start-up messages that show what a job is waiting for, and a warning if no rank has called hvd.init()."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from horovod.common.contract import reasons
from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.plan.settings import LaunchSettings

# Seconds of waiting after which the status line appears on a terminal
QUIET = 2.0
# Seconds of waiting after which the first line appears in a log. The interval doubles with each line.
FIRST = 5.0
SHOWN = 4  # Maximum number of hosts in a line
BAR = 10


@dataclass(frozen=True)
class Host:
    """Host whose agent or processes have not started yet.

    Attributes:
        name: Name of the host.
        ranks: Ranks on the host.
        why: Reason for the last failed attempt to connect, or an empty string.
    """

    name: str
    ranks: Sequence[int]
    why: str = ""


@dataclass(frozen=True)
class State:
    """State of a job that is starting up.

    Attributes:
        connecting: Hosts whose agents have not connected yet.
        starting: Hosts whose processes have not started yet.
        groups: Result of `StoreServer.waiting`, or None.
    """

    connecting: Sequence[Host] = ()
    starting: Sequence[Host] = ()
    groups: Mapping[str, tuple[int, Collection[int]]] | None = None


@dataclass(frozen=True)
class StatusUpdate:
    """Progress to show to the user.

    Attributes:
        status: Status line for a terminal.
        line: Line to append to a log.
    """

    status: str = ""
    line: str = ""


class Progress:
    """Display of the progress of a job that is starting up. It shows nothing if the job starts quickly."""

    def __init__(self, hosts: Mapping[int, str], terminal: bool) -> None:
        """Create the display. `hosts` maps each rank to its host."""
        self._hosts = hosts
        self._terminal = terminal
        self._phase = ""
        self._since = 0.0
        self._next: float | None = None

    def next_time(self) -> float | None:
        """Return the next time at which `update` must be called even if no event arrives, or None."""
        return self._next

    def update(self, now: float, state: State) -> StatusUpdate:
        """Return the progress to show for this state of the job."""
        phase, missing, text = self._describe(state)
        if phase != self._phase:
            self._phase, self._since = phase, now
            self._next = now + (QUIET if self._terminal else FIRST) if phase else None
        if self._next is None:
            return StatusUpdate()
        waited = now - self._since
        sentence = f"waiting {waited:.0f} s for {text}"
        if self._terminal:
            if waited < QUIET:
                return StatusUpdate()
            self._next = self._since + int(waited) + 1
            return StatusUpdate(status=f"{self._bar(missing)} {sentence}")
        if now < self._next:
            return StatusUpdate()
        self._next = self._since + FIRST
        while self._next <= now:
            self._next += self._next - self._since
        return StatusUpdate(line=sentence)

    def _describe(self, state: State) -> tuple[str, int, str]:
        """Return the phase, the number of missing ranks, and a description of these ranks.

        The result is ("", 0, "") if no rank is missing.
        """
        if state.connecting:
            missing = sum(len(host.ranks) for host in state.connecting)
            return "connect", missing, self._host_list(state.connecting)
        if state.starting:
            missing = sum(len(host.ranks) for host in state.starting)
            return "start", missing, f"the processes of {self._host_list(state.starting)}"
        for group, (size, joined) in (state.groups or {}).items():
            if size != len(self._hosts):
                # Skip store groups of only some ranks, because their member numbers are not ranks of the job.
                continue
            missing_ranks = [rank for rank in range(size) if rank not in joined]
            if group == "init":
                return group, len(missing_ranks), f"hvd.init() on {self._rank_list(missing_ranks)}"
            if group.startswith("formed "):
                return group, len(missing_ranks), f"connections to the other ranks on {self._rank_list(missing_ranks)}"
        return "", 0, ""

    def _bar(self, missing: int) -> str:
        size = len(self._hosts)
        done = size - missing
        filled = BAR * done // size
        return f"[{'#' * filled}{'.' * (BAR - filled)}] {done}/{size}"

    @staticmethod
    def _host_list(waiting: Sequence[Host]) -> str:
        named = [
            f"host {host.name} ({_ranks(host.ranks)}{': ' + host.why if host.why else ''})" for host in waiting[:SHOWN]
        ]
        return _and_more(named, len(waiting) - SHOWN, "hosts")

    def _rank_list(self, missing: Sequence[int]) -> str:
        """List ranks with their hosts, such as `rank 3 (host2), ranks 4-7 (host3)`."""
        by_host: dict[str, list[int]] = {}
        for rank in missing:
            by_host.setdefault(self._hosts[rank], []).append(rank)
        if len(set(self._hosts.values())) == 1:
            return _ranks(missing)
        named = [f"{_ranks(on_host)} ({host})" for host, on_host in by_host.items()]
        more = sum(len(on_host) for on_host in list(by_host.values())[SHOWN:])
        return _and_more(named[:SHOWN], more, "ranks")


def _ranks(ranks: Sequence[int]) -> str:
    return reasons.named_ranks(ranks, ",")


def _and_more(named: Sequence[str], more: int, what: str) -> str:
    return ", ".join(named) + (f" and {more} more {what if more > 1 else what[:-1]}" if more > 0 else "")


def late(waiting: Sequence[tuple[str, str, str, bool]], seconds: float, names: Names = FLAGS) -> str:
    """Return the message for a job that did not start in time.

    Args:
        waiting: For each agent that has not answered: the host, its ranks, the reason (empty if unknown), and True if
            the host is another machine.
        seconds: Start timeout in seconds.
        names: Names of the settings in messages.
    """
    limit = f"within {seconds:g} s ({names.start_timeout})"
    if not waiting:
        return f"the workers were not started {limit}"
    lines, silent = [], ""
    for host, ranks, why, remote in waiting:
        lines.append(f"host {host} ({ranks}){': ' + why if why else ''}")
        if not why and remote:
            silent = f"\nits login shell, or Python there, may hang: try `ssh {host} true`"
    return f"no agent answered {limit} from {', '.join(lines)}{silent}"


# If no rank calls hvd.init(), the ranks train independent models, and all of them write the same files. The warning is
# limited to Python programs, because commands such as `horovodrun -np 4 hostname` are legitimate.

FIRST_LOOK = 60.0  # Seconds between the start of all ranks and the check
_PYTHON = re.compile(r"(?:i?python|pypy)[\d.]*t?")
_SHELL = re.compile(r"(?:ba|da|k|z)?sh")
_ASSIGNMENT = re.compile(r"\w+=")  # Matches a `NAME=value` argument of the program `env`
_HELP = "see the first lines of Horovod's README"


def runs_python(command: Sequence[str]) -> bool:
    """Return True if the arguments of the command show that it runs a Python file or module."""
    for index, word in enumerate(command):
        name = "" if _ASSIGNMENT.match(word) else PurePosixPath(word).name
        if name == "horovodrun":  # The ranks of this inner horovodrun call hvd.init(), not horovodrun itself.
            return False
        if _PYTHON.fullmatch(name):
            return _runs_file(command[index + 1 :])
        if name.endswith(".py"):
            return True
        if _SHELL.fullmatch(name):
            return _shell_runs_python(command[index + 1 :])
    return False


def _runs_file(arguments: Sequence[str]) -> bool:
    """Return True if `python` runs a file or module with these arguments."""
    for word in arguments:
        if not word.startswith("-"):
            return True
        if word.startswith("-m"):
            return True
        if re.match(r"-[a-zA-Z]*[cVh]", word) or word in ("-", "--version", "--help"):
            return False
    return False


def _shell_runs_python(arguments: Sequence[str]) -> bool:
    """Return True if a shell runs Python with these arguments. Only the text after -c is examined."""
    for index, argument in enumerate(arguments[:-1]):
        if re.fullmatch(r"-[a-z]*c", argument):
            lexer = shlex.shlex(arguments[index + 1], posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            try:
                return runs_python(list(lexer))
            except ValueError:  # The shell command contains an unclosed quotation mark.
                return False
        if not argument.startswith("-"):
            return False
    return False


def users_command(settings: LaunchSettings, payload: bytes | None) -> list[str]:
    """Return the command for `UninitializedJobCheck`, or an empty list to disable the check.

    The check is disabled for Horovod's own programs, and while the user is debugging a rank.
    """
    return [] if payload or settings.options.own_python or settings.debug_rank is not None else settings.command


class UninitializedJobCheck:
    """Warnings for the user if no rank of a job calls hvd.init()."""

    def __init__(self, size: int, command: Sequence[str]) -> None:
        """Prepare to check whether the ranks call hvd.init().

        Args:
            size: Number of ranks.
            command: The user's command, or empty for Horovod's own programs.
        """
        self._size = size if runs_python(command) else 1
        self._look_at: float | None = None

    def started(self, now: float) -> None:
        """Record that all ranks of the job have started."""
        if self._size > 1:
            self._look_at = now + FIRST_LOOK

    def next_time(self) -> float | None:
        """Return the time at which the caller must call `early`, or None once `early` has checked the job."""
        return self._look_at

    def early(self, now: float, called: bool) -> str:
        """Return a warning if no rank has called hvd.init() for FIRST_LOOK seconds, or an empty string.

        Args:
            now: Current time (monotonic, s).
            called: True if any rank has called hvd.init().
        """
        if self._look_at is None or now < self._look_at:
            return ""
        self._look_at = None
        if called:
            return ""
        return (
            f"still starting: after {FIRST_LOOK:g} s no rank has called hvd.init() yet. Imports and data may take that "
            f"long; a program that never calls it runs as {self._size} copies that know nothing of each other, unless "
            f"it uses torch.distributed ({_HELP})"
        )

    def late(self, called: bool) -> str:
        """Return a warning if the job succeeded although no rank called hvd.init(), or else an empty string."""
        if called or self._size == 1:
            return ""
        return (
            f"warning: no rank has called hvd.init(), so the same program ran {self._size} times, each copy by "
            f"itself, unless it uses torch.distributed; to train one model it has to call hvd.init() first ({_HELP})"
        )
