"""Update rules on flat arrays of NumPy or PyTorch. Pure: nothing here communicates.

Sources: local SGD (Stich 2019), post-local SGD (Lin et al. 2020), DiLoCo (Douillard et al. 2023), Streaming DiLoCo
(Douillard et al. 2025), EASGD (Zhang et al. 2015), stochastic gradient push (Assran et al. 2019).
"""

from dataclasses import dataclass
from typing import Any

from horovod.strategies.layout import slices


@dataclass(frozen=True)
class OuterSGD:
    """Optimizer of the shared parameters, applied once a round to the average change of the ranks.

    With ``lr=1`` and ``momentum=0`` the result is the average of the ranks' parameters.

    Args:
        lr (float): Learning rate, above 0. Default: 0.7.
        momentum (float): Momentum, from 0 up to but not including 1. Default: 0.9.
        nesterov (bool): Use Nesterov momentum, in PyTorch's form. Default: True.

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
            shared: Shared parameters at the round's beginning.
            change: Average over the ranks of ``shared`` minus their parameters.
            velocity: Momentum buffer; zeros at first, None if ``momentum`` is 0.
        """
        if self.momentum == 0:
            shared -= self.lr * change
            return
        velocity *= self.momentum
        velocity += change
        shared -= self.lr * (change + self.momentum * velocity if self.nesterov else velocity)


AVERAGING = OuterSGD(lr=1.0, momentum=0.0, nesterov=False)
"""The rule of local SGD."""


@dataclass(frozen=True)
class Schedule:
    """Which fragments of the parameters are exchanged after which step.

    Depends only on the number of steps, which is the same on all ranks, so all ranks exchange the same fragments in the
    same order.

    Args:
        every: Steps between two exchanges of the same fragment; a multiple of ``fragments``.
        fragments: Number of fragments, exchanged in turns at equal distances.
        overlap: Steps between sending a fragment and using the result; less than ``every / fragments``.
        synchronous_steps: Number of first steps after each of which everything is exchanged.

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
        """Return the fragments that are exchanged after ``step`` steps, in order."""
        if step <= self.synchronous_steps:
            return list(range(self.fragments))
        turn, rest = divmod(step - self.synchronous_steps, self.every // self.fragments)
        return [] if rest else [(turn - 1) % self.fragments]

    def begin_of_round(self, step: int) -> int:
        """Return the number of steps at which the round of step ``step`` began."""
        return step - max(0, step - self.synchronous_steps) % self.every

    def ranges(self, total: int) -> list[tuple[int, int]]:
        """Return the (start, stop) of each fragment among ``total`` elements."""
        return slices(total, self.fragments)


def check_count(name: str, value: Any, least: int) -> int:
    """Return ``value`` if it is an integer of at least ``least``; otherwise raise ValueError."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return int(value)


def blend(shared: Any, local: Any, share: float) -> Any:
    """Return ``local`` with weight ``share`` mixed into ``shared``."""
    return shared if share == 0 else shared + share * (local - shared)


def elastic_move(local: Any, center: Any, rate: float) -> Any:
    """Return the move of elastic averaging. It is subtracted from ``local`` and added to ``center``.

    So an exchange conserves the sum of the center and all workers' parameters.
    """
    return rate * (local - center)


def pushed(value: Any, receivers: int) -> Any:
    """Return the share of a push-sum value, or weight, that a rank keeps and that it sends to each receiver.

    The shares add up to the whole, so the sums over the ranks of values and of weights are conserved.
    """
    return value * (1.0 / (1 + receivers))
