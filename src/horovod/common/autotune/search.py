"""Search for the settings with the shortest training step.

The generator ``search`` yields settings to measure, and receives the measured step times.

Current settings and candidate are measured alternately: old, new, old, new. The candidate is accepted only if it is
faster both times, by more than the noise. At the end, the result is compared with the initial settings in the same way,
so the final settings are never slower than the initial ones.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from horovod.common.telemetry.steps import median

LEAST_GAIN = 0.01
"""Minimum gain for which a candidate is accepted, as a fraction of the step."""
# A gain counts only if it exceeds zero by this many standard errors.
_SIGMAS = 3
# Ratios between neighboring candidate values, first for the coarse search, then for the fine search.
_FACTORS = (4, 2)

Values = dict[str, int]
"""Value of each tuned parameter, by name."""


class Sample(NamedTuple):
    """Measured step time under one combination of settings."""

    seconds: float
    """Median step time in seconds."""
    error: float
    """Standard error of the median in seconds, estimated from the median absolute deviation."""

    @classmethod
    def of(cls, times: Sequence[float]) -> "Sample":
        """Create a sample from step times in seconds."""
        middle = median(times)
        # For a normal distribution, the standard deviation is 1.4826 times the median absolute deviation.
        deviation = 1.4826 * median([abs(time - middle) for time in times])
        return cls(middle, 1.2533 * deviation / len(times) ** 0.5)


@dataclass(frozen=True)
class Parameter:
    """Setting that autotune can change. All values are in bytes."""

    name: str
    low: int
    high: int
    first: int = 0
    """First candidate, or 0 to begin with the neighbors of the initial value."""


@dataclass
class Progress:
    """State of a search. ``search`` updates it as it runs."""

    best: Values
    initial: Sample | None = None
    """First sample with the initial values."""
    seconds: float = 0.0
    """Latest step time with the best values, or 0 before it is measured."""
    tried: int = 0
    """Number of candidates that were measured."""
    gain: float = 0.0
    """Gain of ``best`` over the initial values as a fraction of the step, measured at the end."""
    seen: set[tuple[int, ...]] = field(default_factory=set)


Measuring = Generator[Values, Sample]
"""Generator that yields values to measure and receives their sample."""


def search(progress: Progress, parameters: Sequence[Parameter], max_candidates: int) -> Measuring:
    """Tune the parameters one at a time, and store the result in ``progress``.

    Args:
        progress: State of the search. ``progress.best`` contains the initial values.
        parameters: Parameters to tune, in this order.
        max_candidates: Maximum number of candidates to measure.

    Yields:
        Candidates to measure, one at a time. The caller sends the result of each.
    """
    initial = dict(progress.best)
    progress.seen.add(tuple(initial.values()))
    for parameter in parameters:
        yield from _along(progress, parameter, max_candidates)
    if progress.best != initial:
        gain = yield from _compare(progress, initial, progress.best)
        if gain:
            progress.gain = gain
        else:
            progress.best = initial


def _along(progress: Progress, parameter: Parameter, max_candidates: int) -> Generator[Values, Sample, None]:
    if parameter.first:
        yield from _try(progress, parameter, parameter.first, max_candidates)
    for factor in _FACTORS:
        for up in (False, True):
            moved = False
            while True:
                value = progress.best[parameter.name]
                value = value * factor if up else value // factor
                accepted = yield from _try(progress, parameter, value, max_candidates)
                if not accepted:
                    break
                moved = True
            if moved:
                break


def _try(progress: Progress, parameter: Parameter, value: int, max_candidates: int) -> Generator[Values, Sample, bool]:
    """Measure the candidate unless it has been measured before. Return True if it is accepted."""
    value = min(max(value, parameter.low), parameter.high)
    candidate = {**progress.best, parameter.name: value}
    key = tuple(candidate.values())
    if key in progress.seen or progress.tried >= max_candidates:
        return False
    progress.seen.add(key)
    progress.tried += 1
    gain = yield from _compare(progress, progress.best, candidate)
    if gain:
        progress.best = candidate
    return gain > 0


def _compare(progress: Progress, old: Mapping[str, int], new: Mapping[str, int]) -> Generator[Values, Sample, float]:
    """Return the gain of ``new`` over ``old`` as a fraction of the step, or 0 if it does not exceed the noise."""
    pairs = []
    for _ in range(2):
        before = yield dict(old)
        progress.initial = progress.initial or before
        progress.seconds = before.seconds
        after = yield dict(new)
        if after.seconds > before.seconds * (1 - LEAST_GAIN):
            return 0.0
        pairs.append((before, after))
    (old1, _), (old2, _) = pairs
    noise = abs(old1.seconds - old2.seconds) / min(old1.seconds, old2.seconds)
    gains = [1 - after.seconds / before.seconds for before, after in pairs]
    for before, after in pairs:
        noise = max(noise, _SIGMAS * (before.error**2 + after.error**2) ** 0.5 / before.seconds)
    if min(gains) <= max(noise, LEAST_GAIN):
        return 0.0
    progress.seconds = pairs[1][1].seconds
    return sum(gains) / 2
