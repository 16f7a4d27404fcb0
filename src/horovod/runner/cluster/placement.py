"""Assignment of ranks to processes that have connected, one rank each. Pure.

Ranks of a machine are consecutive. Machines are ordered by their lowest process number, and so are the ranks on each.
Thus number 0 is rank 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horovod.runner.plan.hosts import Host, Slot, assign


class Machines:
    """Unique names for machines: the host name, with a number appended where several share it, as containers do."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by identity

    def name(self, machine: str, hostname: str) -> str:
        """Return the name of the machine of this identity, always the same one."""
        if machine not in self._names:
            taken, name, count = set(self._names.values()), hostname, 1
            while name in taken:
                count += 1
                name = f"{hostname}#{count}"
            self._names[machine] = name
        return self._names[machine]


def place(machines: Mapping[int, str]) -> list[tuple[int, Slot]]:
    """Return (number, slot) pairs in rank order. `machines` maps numbers to names of machines."""
    numbers: dict[str, list[int]] = {}
    for number in sorted(machines):
        numbers.setdefault(machines[number], []).append(number)
    ordered: Sequence[int] = [number for group in numbers.values() for number in group]
    slots = assign([Host(name, len(group)) for name, group in numbers.items()], len(ordered))
    return list(zip(ordered, slots, strict=True))
