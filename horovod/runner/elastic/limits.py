"""What the user allows an elastic job."""

from __future__ import annotations

from dataclasses import dataclass

from horovod.runner.base.names import FLAGS, Names


@dataclass(frozen=True)
class Limits:
    """`start`: workers before the first epoch (-np); `least`, `most`: of every epoch; `resets`: how often members may
    change; `timeout`: s without an epoch that runs; `patience`: s for a member to come back from one that is over,
    half of that if not given; `gather`: s that workers of the first epoch wait for others that are starting, as ever
    if not given. `names`: what the user calls them.
    """

    start: int
    least: int
    most: int | None = None
    resets: int | None = None
    timeout: float = 600.0
    patience: float | None = None
    gather: float | None = None
    names: Names = FLAGS

    def __post_init__(self) -> None:
        names = self.names
        if not 1 <= self.least <= self.start or (self.most is not None and self.most < self.start):
            most = "any number" if self.most is None else self.most
            raise ValueError(
                f"{names.least} is {self.least}, {names.start} {self.start} and {names.most} {most}; accepted is "
                f"1 <= {names.least} <= {names.start} <= {names.most}"
            )
        if self.resets is not None and self.resets < 0:
            raise ValueError(f"{names.resets} is {self.resets}, accepted is 0 or more")
        if self.timeout <= 0:
            raise ValueError(f"{names.timeout} is {self.timeout:g}, accepted is a number of seconds above 0")

    @property
    def seconds_to_come_back(self) -> float:
        return self.timeout / 2 if self.patience is None else self.patience

    def has_room(self, size: int) -> bool:
        """May an epoch have more members than this?"""
        return self.most is None or size < self.most


@dataclass
class Resets:
    """How often the members of a job have changed. `most`: how often they may, None: as often as they like."""

    most: int | None
    done: int = 0

    @property
    def used_up(self) -> bool:
        return self.most is not None and self.done >= self.most
