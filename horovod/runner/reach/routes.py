"""From where each other host is reached, and what is tried when that fails. Pure.

With more than `fanout` other hosts, the first `fanout` are reached from here and each starts some of the others: a tree
like that of a heap. A host that its parent cannot reach (no key there, say) is tried from here.

Where hosts come and go, all are reached from here.

    through its parent --fails--> from here --fails, may be different in a moment--> again, until RETRY_UNTIL
                                     '--fails otherwise, or too late--> given up
"""

from __future__ import annotations

from collections.abc import Sequence

RETRY_SECONDS = 1.0
RETRY_UNTIL = 7.0  # s after the first attempt in which another may begin; so a host is named within 10 s


class Routes:
    """`hosts`: the other ones, in their order."""

    def __init__(self, hosts: Sequence[str], fanout: int) -> None:
        self._fanout = fanout
        # Host i >= fanout is started by host i // fanout - 1, so each starts at most `fanout`.
        self._parents = {hosts[i]: hosts[i // fanout - 1] for i in range(fanout, len(hosts))}

    def parent(self, host: str) -> str | None:
        """The host from which this one is reached; None: this machine."""
        return self._parents.get(host)

    def children(self, host: str) -> list[str]:
        """Those that are reached from this one."""
        return [child for child, parent in self._parents.items() if parent == host]

    def depth(self, host: str) -> int:
        """How many others lie between."""
        parent = self.parent(host)
        return 0 if parent is None else 1 + self.depth(parent)

    def after_failure(self, host: str, again: bool, tried: float, now: float) -> float | None:
        """When to try the host again, perhaps on another way; None: not any more. `again`: it may be different in a
        moment; `tried`: since when (both times monotonic, s)."""
        late = now - tried >= RETRY_UNTIL
        if host in self._parents and not (again and late):
            del self._parents[host]
            return now
        return now + RETRY_SECONDS if again and not late else None
