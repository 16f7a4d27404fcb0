"""Computation of profiles from the steps that a frontend (``horovod.torch.profiling``) has recorded."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, pstdev

import msgspec

from horovod.planner.profile import FORMAT, Gradient, Profile, Times, Variation


class RecordedStep(msgspec.Struct, frozen=True):
    """Times of one step of one rank, in seconds, without the time in which it only waited for communication."""

    data: float
    forward: float
    backward: float
    optimizer: float
    ready: dict[int, float]
    """Seconds from the start of backward until each gradient is ready, by the index of its parameter."""

    @property
    def seconds(self) -> float:
        """Total duration of all phases, in seconds."""
        return self.data + self.forward + self.backward + self.optimizer


class RecordedRank(msgspec.Struct, frozen=True):
    """All recorded steps of one rank.

    Attributes:
        name: Name of the model.
        device: "cpu" or "gpu".
        batch: Samples per step.
        gradients: (name, elements, dtype) of each parameter.
        steps: Recorded steps, in order.
    """

    name: str
    device: str
    batch: int
    gradients: list[tuple[str, int, str]]
    steps: list[RecordedStep]


def profile_of(ranks: Sequence[RecordedRank]) -> Profile:
    """Return the profile of a job from the recorded steps of its ranks.

    Times are medians over steps and means over ranks. The wait for data is a mean over steps instead, because loaders
    that read ahead often deliver several batches at once. Gradients that fewer than half of the steps produced are left
    out.

    Raises:
        ValueError: If no step was recorded, or if no gradient was seen.
    """
    first = ranks[0]
    if not all(rank.steps for rank in ranks):
        raise ValueError("a profile needs at least one recorded step on every rank")

    def typical(phase: str) -> float:
        return fmean(median(getattr(step, phase) for step in rank.steps) for rank in ranks)

    times = Times(
        data=fmean(fmean(step.data for step in rank.steps) for rank in ranks),
        forward=typical("forward"),
        backward=typical("backward"),
        optimizer=typical("optimizer"),
    )
    gradients = []
    for number, (name, elements, dtype) in enumerate(first.gradients):
        seen = [[step.ready[number] for step in rank.steps if number in step.ready] for rank in ranks]
        if sum(map(len, seen)) * 2 >= sum(len(rank.steps) for rank in ranks):
            ready = fmean(median(moments) for moments in seen if moments)
            gradients.append(Gradient(name, elements, dtype, min(ready, times.backward)))
    if not gradients:
        raise ValueError("no gradient was seen: the optimizer that steps has no parameters with gradients")
    means = [fmean(step.seconds for step in rank.steps) for rank in ranks]
    spread = [pstdev(step.seconds for step in rank.steps) for rank in ranks]
    return Profile(
        format=FORMAT,
        name=first.name,
        source=f"recorded in {len(first.steps)} steps",
        device=first.device,
        batch=first.batch,
        workers=len(ranks),
        steps=len(first.steps),
        seconds=times,
        variation=Variation(steps=fmean(spread) / fmean(means), ranks=pstdev(means) / fmean(means)),
        gradients=tuple(sorted(gradients, key=lambda gradient: gradient.ready)),
    )
