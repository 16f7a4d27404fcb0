"""Workers that are stopped (SIGSTOP, a debugger), and since when. Pure: times are arguments (monotonic, s)."""

from __future__ import annotations


class StoppedWorkers:
    """Stopped workers, with a timeout in seconds like that for silent agents."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[int, float] = {}

    def stops(self, number: int, now: float) -> None:
        """Record that a worker is stopped."""
        self._since[number] = now

    def goes_on(self, number: int) -> None:
        """Record that a worker runs again or has ended, whether or not it was stopped."""
        self._since.pop(number, None)

    def next_time(self) -> float | None:
        """Return when the next worker exceeds the timeout, or None if no worker is stopped."""
        return min((since + self._timeout for since in self._since.values()), default=None)

    def take_late(self, now: float) -> list[int]:
        """Return the workers that have exceeded the timeout; each is returned once per timeout."""
        late = [number for number, since in self._since.items() if now >= since + self._timeout]
        self._since.update(dict.fromkeys(late, now))
        return late

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by the seconds during which the launcher did not run."""
        self._since = {number: since + seconds for number, since in self._since.items()}
