"""Limits of an elastic job, as set by the user."""

from __future__ import annotations

from dataclasses import dataclass

from horovod.runner.base.names import FLAGS, Names


@dataclass(frozen=True)
class Limits:
    """Limits of an elastic job.

    Attributes:
        start: Workers before the first epoch (-np).
        least: Fewest workers of an epoch.
        most: Most workers of an epoch; None means no limit.
        resets: How often the members may change; None means no limit.
        timeout: Seconds without a running epoch after which the job ends.
        patience: Seconds for a member to return from an epoch that is over; default half of `timeout`.
        gather: Seconds that workers of the first epoch wait for others that are starting; default as in later epochs.
        names: How messages name the values.
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
                f"the sizes must be 1 <= {names.least} <= {names.start} <= {names.most}, got {names.least} "
                f"{self.least}, {names.start} {self.start} and {names.most} {most}"
            )
        if self.resets is not None and self.resets < 0:
            raise ValueError(f"{names.resets} must be 0 or more, got {self.resets}")
        if self.timeout <= 0:
            raise ValueError(f"{names.timeout} must be a number of seconds above 0, got {self.timeout:g}")

    @property
    def seconds_to_come_back(self) -> float:
        """Seconds for a member to return from an epoch that is over."""
        return self.timeout / 2 if self.patience is None else self.patience

    def has_room(self, size: int) -> bool:
        """Return True if an epoch may have more than `size` members."""
        return self.most is None or size < self.most


@dataclass
class Resets:
    """Count of changes of a job's members. `most` is the maximum, None for no limit."""

    most: int | None
    done: int = 0

    @property
    def used_up(self) -> bool:
        """True if the members may not change any more."""
        return self.most is not None and self.done >= self.most
