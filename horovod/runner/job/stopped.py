"""Workers that are stopped (SIGSTOP, a debugger), and for how long. Pure: times are arguments (monotonic, s)."""

from __future__ import annotations


class StoppedWorkers:
    """`timeout`: s after which one has been so for too long, as their agents' silence would be."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[int, float] = {}

    def stops(self, number: int, now: float) -> None:
        """A worker is stopped."""
        self._since[number] = now

    def goes_on(self, number: int) -> None:
        """It is not stopped any more, or is no more; it need not have been."""
        self._since.pop(number, None)

    def next_time(self) -> float | None:
        """When the first of them has been stopped for too long; None: nobody is."""
        return min((since + self._timeout for since in self._since.values()), default=None)

    def take_late(self, now: float) -> list[int]:
        """Who has been stopped for too long; each is told once in every `timeout`."""
        late = [number for number, since in self._since.items() if now >= since + self._timeout]
        self._since.update(dict.fromkeys(late, now))
        return late

    def postpone(self, seconds: float) -> None:
        """The launcher itself has stood still for so long."""
        self._since = {number: since + seconds for number, since in self._since.items()}
