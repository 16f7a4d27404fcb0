"""Finds the hosts of an elastic job, again and again, while its launcher does other things. No call waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from horovod.runner.base.errors import LaunchError
from horovod.runner.base.names import FLAGS, Names
from horovod.runner.elastic.script import ScriptRun

EVERY = 1.0  # s from the end of one run of the script to the start of the next


@dataclass(frozen=True)
class Found:
    """Slots by host, in the order in which they are to be used. `certain`: that there are none is an answer, too.
    `complete`: no other joins these. `by`: the script that has named them, if one has."""

    slots: Mapping[str, int]
    certain: bool = False
    complete: bool = False
    by: str = field(default="", compare=False)


@dataclass(frozen=True)
class NotFound:
    """`why` in words. `first`: hosts have never been found."""

    why: str
    first: bool


class Source(Protocol):
    """Where the hosts of an elastic job come from. No call waits."""

    def events(self) -> dict[int, int]:
        """Descriptors and what to poll them for."""

    def next_time(self) -> float | None:
        """When to call `look` even if nothing happens (monotonic)."""

    def look(self, now: float) -> Found | NotFound | None:
        """What is new; None: nothing."""

    def lost(self, host: str) -> None:
        """The job has lost this host, or cannot use it."""

    def machine_of(self, host: str) -> str:
        """The machine that a host is, or is a part of."""

    def close(self) -> None:
        """May be called again."""


class Finder:
    """By a script, or the same hosts always. Tells what has changed only."""

    def __init__(
        self,
        script: str | None,
        slots: int | None,
        fixed: Mapping[str, int],
        command: Sequence[str] = (),
        every: float | None = None,
        names: Names = FLAGS,
    ) -> None:
        """`slots`: of hosts that do not tell theirs; `fixed`: the hosts where there is no script. `command`: a program
        of ours in place of the script, which is its name then; `every`: s between its runs. `names`: what the caller
        calls script and slots. Raises LaunchError saying what is wrong with the script's file."""
        self._command = command
        self._every = every
        self._names = names
        self._script = script
        self._slots = slots
        self._run = None if script is None else ScriptRun(script, slots, command=command, names=names)
        self._next: float | None = None
        self._fixed: Mapping[str, int] | None = fixed if script is None else None
        self._last: list[tuple[str, int]] | None = None
        self._trouble = ""

    def events(self) -> dict[int, int]:
        """Descriptors and what to poll them for."""
        return {} if self._run is None else self._run.events()

    def next_time(self) -> float | None:
        """When to call `look` even if nothing happens (monotonic)."""
        if self._fixed is not None:
            return 0.0
        return self._next if self._run is None else self._run.next_time()

    def look(self, now: float) -> Found | NotFound | None:
        """What is new; None: nothing."""
        if self._fixed is not None:
            found, self._fixed = self._fixed, None
            return Found(found)
        if self._run is None:
            if self._next is None or now < self._next or self._script is None:
                return None
            return self._begin(now)
        self._run.serve()
        if not self._run.done:
            return None
        run, self._run, self._next = self._run, None, now + (EVERY if self._every is None else self._every)
        try:
            return self._found(run.result())
        except LaunchError as error:
            return self._failed(str(error))

    def _begin(self, now: float) -> NotFound | None:
        assert self._script is not None
        try:
            self._run = ScriptRun(self._script, self._slots, command=self._command, names=self._names)
        except LaunchError as error:
            self._next = now + EVERY
            return self._failed(str(error))
        return None

    def _found(self, slots: Mapping[str, int]) -> Found | None:
        self._trouble = ""
        if self._last == list(slots.items()):
            return None
        self._last = list(slots.items())
        return Found(slots, by=self._script or "")

    def _failed(self, why: str) -> NotFound | None:
        if why == self._trouble:
            return None
        self._trouble = why
        return NotFound(why, self._last is None)

    def lost(self, host: str) -> None:
        """Whether it can be used again, what finds hosts will tell."""

    def machine_of(self, host: str) -> str:
        """Hosts are machines."""
        return host

    def close(self) -> None:
        """May be called again."""
        self._script = None
        if self._run is not None:
            self._run.close()
