"""Update rules for flat arrays of NumPy or PyTorch. Nothing in this module communicates.

Sources: local SGD (Stich 2019), post-local SGD (Lin et al. 2020), DiLoCo (Douillard et al. 2023), Streaming DiLoCo
(Douillard et al. 2025), EASGD (Zhang et al. 2015), stochastic gradient push (Assran et al. 2019).
"""

from dataclasses import dataclass
from typing import Any

from horovod.strategies.layout import slices


@dataclass(frozen=True)
class OuterSGD:
    """Optimizer of the shared parameters, which is applied once per round to the ranks' average change.

    With ``lr=1`` and ``momentum=0`` the result is the average of the ranks' parameters.

    Args:
        lr (float): Learning rate, above 0. Default: 0.7.
        momentum (float): Momentum, from 0 up to but not including 1. Default: 0.9.
        nesterov (bool): Use Nesterov momentum, as defined in PyTorch. Default: True.

    Raises:
        ValueError: ``lr`` or ``momentum`` is out of range.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"OuterSGD: lr must be above 0, got {self.lr!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"OuterSGD: momentum must be at least 0 and below 1, got {self.momentum!r}")

    def update(self, shared: Any, change: Any, velocity: Any) -> None:
        """Update ``shared`` and ``velocity`` in place.

        Args:
            shared: Shared parameters at the beginning of the round.
            change: Average over the ranks of ``shared`` minus the rank's parameters.
            velocity: Momentum buffer, which starts with zeros. None if ``momentum`` is 0.
        """
        if self.momentum == 0:
            shared -= self.lr * change
            return
        velocity *= self.momentum
        velocity += change
        shared -= self.lr * (change + self.momentum * velocity if self.nesterov else velocity)


AVERAGING = OuterSGD(lr=1.0, momentum=0.0, nesterov=False)
"""Outer optimizer of local SGD, which averages the parameters."""


@dataclass(frozen=True)
class Schedule:
    """Schedule that determines which fragments of the parameters are exchanged after each step.

    It depends only on the number of steps, which is equal on all ranks. So all ranks exchange the same fragments in the
    same order.

    Args:
        every: Number of steps between two exchanges of the same fragment. Must be a multiple of ``fragments``.
        fragments: Number of fragments, which are exchanged in turns at equal intervals.
        overlap: Number of steps between sending a fragment and using the result. Must be less than
            ``every / fragments``.
        synchronous_steps: Number of steps, from the first on, after each of which all fragments are exchanged.

    Raises:
        ValueError: An argument is out of range.
    """

    every: int
    fragments: int = 1
    overlap: int = 0
    synchronous_steps: int = 0

    def __post_init__(self) -> None:
        check_count("every", self.every, 1)
        check_count("fragments", self.fragments, 1)
        check_count("overlap", self.overlap, 0)
        check_count("synchronous_steps", self.synchronous_steps, 0)
        if self.every % self.fragments:
            raise ValueError(f"every must be a multiple of fragments ({self.fragments}), got {self.every}")
        if self.overlap >= self.every // self.fragments:
            raise ValueError(
                f"overlap must be below every / fragments = {self.every // self.fragments} steps, got {self.overlap}"
            )

    def due(self, step: int) -> list[int]:
        """Return the indices of the fragments that are exchanged after ``step`` steps, in order."""
        if step <= self.synchronous_steps:
            return list(range(self.fragments))
        turn, rest = divmod(step - self.synchronous_steps, self.every // self.fragments)
        return [] if rest else [(turn - 1) % self.fragments]

    def begin_of_round(self, step: int) -> int:
        """Return the number of steps that were completed when the round that contains ``step`` began."""
        return step - max(0, step - self.synchronous_steps) % self.every

    def ranges(self, total: int) -> list[tuple[int, int]]:
        """Return (start, stop) of each fragment of a vector of ``total`` elements."""
        return slices(total, self.fragments)


def check_count(name: str, value: Any, least: int) -> int:
    """Check that ``value`` is an integer of at least ``least``, and return it. Raises ValueError otherwise."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return int(value)


def blend(shared: Any, local: Any, share: float) -> Any:
    """Return the weighted mean of ``local``, with the weight ``share``, and ``shared``."""
    return shared if share == 0 else shared + share * (local - shared)


def elastic_move(local: Any, center: Any, rate: float) -> Any:
    """Return the change that elastic averaging subtracts from ``local`` and adds to ``center``.

    So an exchange does not change the sum of the center and all workers' parameters.
    """
    return rate * (local - center)


def pushed(value: Any, receivers: int) -> Any:
    """Return the equal share of a push-sum value or weight that a rank keeps, and sends to each receiver.

    The shares add up to the whole, so the sums of values and weights over the ranks do not change.
    """
    return value * (1.0 / (1 + receivers))
