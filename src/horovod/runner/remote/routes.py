"""From where each other host is reached, and what is tried when that fails. Pure.

With more than `fanout` other hosts, the first `fanout` are reached from this machine, and each starts some of the
others. This is a tree with the indices of a heap. If its parent cannot reach a host (it has no key, say), the host is
reached from this machine. Where hosts come and go, all are.

    through its parent --fails--> from here --fails temporarily--> again, until RETRY_UNTIL
                                     '--fails otherwise, or too late--> given up
"""

from __future__ import annotations

from collections.abc import Sequence

RETRY_SECONDS = 1.0
RETRY_UNTIL = 7.0  # s after the first attempt in which another may begin, so that a failure is reported within 10 s


class Routes:
    """Tree of the other hosts, given in their order."""

    def __init__(self, hosts: Sequence[str], fanout: int) -> None:
        self._fanout = fanout
        # Host i >= fanout is started by host i // fanout - 1, so each starts at most `fanout`.
        self._parents = {hosts[i]: hosts[i // fanout - 1] for i in range(fanout, len(hosts))}

    def parent(self, host: str) -> str | None:
        """Return the host from which this one is reached, or None for this machine."""
        return self._parents.get(host)

    def children(self, host: str) -> list[str]:
        """Return the hosts that are reached from this one."""
        return [child for child, parent in self._parents.items() if parent == host]

    def depth(self, host: str) -> int:
        """Return the number of hosts on the way to this one."""
        parent = self.parent(host)
        return 0 if parent is None else 1 + self.depth(parent)

    def after_failure(self, host: str, again: bool, tried: float, now: float) -> float | None:
        """Return when to try the host again, perhaps on another way.

        Args:
            host: Host that could not be reached.
            again: True if the failure may be temporary.
            tried: Time of the first attempt (monotonic, s).
            now: Current time (monotonic, s).

        Returns:
            The time of the next attempt; None to give up.
        """
        late = now - tried >= RETRY_UNTIL
        if host in self._parents and not (again and late):
            del self._parents[host]
            return now
        return now + RETRY_SECONDS if again and not late else None
