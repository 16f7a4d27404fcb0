"""Hosts of an elastic job whose agents connect: each is a slot gained, each that disconnects a slot lost."""

from __future__ import annotations

import select

from horovod.runner.cluster.gathering import Arrived, Gathering
from horovod.runner.elastic.finder import Found, NotFound
from horovod.runner.remote import arrived


class ArrivalSource:
    """`Source` whose hosts are the names of connected agents.

    Args:
        gathering: Server to which the agents connect.
        way: Takes the connections.
        most: Maximum number of agents at a time.
    """

    def __init__(self, gathering: Gathering, way: arrived.Arrived, most: int) -> None:
        self._gathering = gathering
        self._most = most
        self._way = way
        self._here: dict[str, Arrived] = {}
        self._machines: dict[str, str] = {}
        self._changed = True
        self._over = False
        self._told = False

    def add(self, each: Arrived) -> None:
        """Add an agent that the gathering has admitted."""
        self._here[each.name] = each
        self._machines[each.name] = each.machine
        self._way.add(each.name, each.connection)
        self._changed = True

    def events(self) -> dict[int, int]:
        if self._over:
            return {}
        # Connections that are not in use yet are watched by no other object.
        idle = [self._here[name].connection for name in self._way.waiting if name in self._here]
        return {self._gathering.fd: select.POLLIN, **{each.fd: select.POLLRDHUP for each in idle if each.fd >= 0}}

    def next_time(self) -> float | None:
        return 0.0 if self._changed and not self._over else None

    def look(self, now: float) -> Found | NotFound | None:
        if self._over:
            return None
        new, news, trouble = self._gathering.take()
        for each in new:
            self.add(each)
        for name in [name for name in self._way.waiting if name in self._here and self._here[name].connection.gone]:
            self.lost(name)
        if trouble is not None and not self._told:
            self._told = True  # report it once; the connected agents continue
            news = [*news, str(trouble)]
        if news:
            return NotFound("\n".join(news), first=False)
        if not self._changed:
            return None
        self._changed = False
        return Found(dict.fromkeys(self._here, 1), certain=True, complete=len(self._here) >= self._most)

    def lost(self, host: str) -> None:
        if self._here.pop(host, None) is not None:
            self._way.drop(host)
            self._changed = True

    def machine_of(self, host: str) -> str:
        return self._machines[host]

    def close(self) -> None:
        self._over = True
        self._gathering.close()
        self._way.close()
