"""Who gets which rank when processes have arrived, one rank each. Pure.

Ranks of a machine follow one another; the machines come in the order of their lowest number, and so do the ranks on
each. So number 0 is rank 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horovod.runner.plan.hosts import Host, Slot, assign


class Machines:
    """Names for machines: that of the host, with a number where two machines call themselves alike (containers do)."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by identity

    def name(self, machine: str, hostname: str) -> str:
        """Of the machine of this identity, the same whenever it is asked for."""
        if machine not in self._names:
            taken, name, count = set(self._names.values()), hostname, 1
            while name in taken:
                count += 1
                name = f"{hostname}#{count}"
            self._names[machine] = name
        return self._names[machine]


def place(machines: Mapping[int, str]) -> list[tuple[int, Slot]]:
    """(number, its slot) by rank. `machines`: the machine's name by number."""
    numbers: dict[str, list[int]] = {}
    for number in sorted(machines):
        numbers.setdefault(machines[number], []).append(number)
    ordered: Sequence[int] = [number for group in numbers.values() for number in group]
    slots = assign([Host(name, len(group)) for name, group in numbers.items()], len(ordered))
    return list(zip(ordered, slots, strict=True))
