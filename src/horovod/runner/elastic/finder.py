"""Sources that repeatedly discover the hosts of an elastic job without blocking the launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.base.job_result import LaunchError
from horovod.runner.elastic.script import ScriptRun

EVERY = 1.0  # Seconds between two runs of the discovery script


@dataclass(frozen=True)
class Discovered:
    """Hosts found by a discovery run.

    Attributes:
        slots: Number of slots on each host, in order of preference.
        certain: True if an empty `slots` really means that no host is available. If False, an empty `slots` is ignored.
        complete: True if no more hosts can be added later.
        by: Script that found the hosts, or an empty string if there is no script.
    """

    slots: Mapping[str, int]
    certain: bool = False
    complete: bool = False
    by: str = field(default="", compare=False)


@dataclass(frozen=True)
class DiscoveryFailed:
    """Failure of a host discovery.

    Attributes:
        why: Reason for the failure.
        first: True if no discovery of the job has succeeded yet.
    """

    why: str
    first: bool


class Source(Protocol):
    """Interface for sources that provide the hosts of an elastic job. No method blocks."""

    def events(self) -> dict[int, int]:
        """Return the file descriptors to poll, with their poll events."""

    def next_time(self) -> float | None:
        """Return the next time (monotonic, s) at which the caller must call `look`, or None if nothing is scheduled."""

    def look(self, now: float) -> Discovered | DiscoveryFailed | None:
        """Return new hosts or a new error, or None if nothing has changed since the last call."""

    def lost(self, host: str) -> None:
        """Record that the job has lost this host or cannot use it."""

    def machine_of(self, host: str) -> str:
        """Return the physical machine of a host. Several hosts, such as Spark tasks, can share a machine."""

    def close(self) -> None:
        """Release all resources. Can be called repeatedly."""


class Finder:
    """Source of hosts that runs a script repeatedly or returns fixed hosts. It reports only changes."""

    def __init__(
        self,
        script: str | None,
        slots: int | None,
        fixed: Mapping[str, int],
        command: Sequence[str] = (),
        every: float | None = None,
        names: Names = FLAGS,
    ) -> None:
        """Start the first run of the script, if there is one.

        Args:
            script: Path of the discovery script; None for fixed hosts.
            slots: Number of slots for hosts that the script prints without a number.
            fixed: Number of slots on each host, if there is no script.
            command: Command to run instead of the script. Messages then call it `script`.
            every: Seconds between two runs of the script. The default is EVERY.
            names: Names of the script and the slots in messages.

        Raises:
            LaunchError: If the script's file cannot be run.
        """
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
        return {} if self._run is None else self._run.events()

    def next_time(self) -> float | None:
        if self._fixed is not None:
            return 0.0
        return self._next if self._run is None else self._run.next_time()

    def look(self, now: float) -> Discovered | DiscoveryFailed | None:
        if self._fixed is not None:
            found, self._fixed = self._fixed, None
            return Discovered(found)
        if self._run is None:
            if self._next is None or now < self._next or self._script is None:
                return None
            return self._begin(now)
        self._run.serve()
        if not self._run.done:
            return None
        run, self._run, self._next = self._run, None, now + (EVERY if self._every is None else self._every)
        try:
            return self._result(run.result())
        except LaunchError as error:
            return self._failed(str(error))

    def _begin(self, now: float) -> DiscoveryFailed | None:
        assert self._script is not None
        try:
            self._run = ScriptRun(self._script, self._slots, command=self._command, names=self._names)
        except LaunchError as error:
            self._next = now + EVERY
            return self._failed(str(error))
        return None

    def _result(self, slots: Mapping[str, int]) -> Discovered | None:
        self._trouble = ""
        if self._last == list(slots.items()):
            return None
        self._last = list(slots.items())
        return Discovered(slots, by=self._script or "")

    def _failed(self, why: str) -> DiscoveryFailed | None:
        if why == self._trouble:
            return None
        self._trouble = why
        return DiscoveryFailed(why, self._last is None)

    def lost(self, host: str) -> None:
        """Do nothing, because the next run of the script shows whether the host is usable."""

    def machine_of(self, host: str) -> str:
        """Return the host itself, because each host is a separate machine."""
        return host

    def close(self) -> None:
        """Stop the discovery script if it is running. Can be called repeatedly."""
        self._script = None
        if self._run is not None:
            self._run.close()
