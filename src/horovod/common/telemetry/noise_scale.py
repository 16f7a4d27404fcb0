"""Gradient noise scale, estimated from the norms of local and averaged gradients. Pure.

S. McCandlish, J. Kaplan, D. Amodei, "An empirical model of large-batch training", 2018
(https://arxiv.org/abs/1812.06162), appendix A.1: the noise scale is tr(C) / |G|^2, where G is the true gradient and C
the covariance of the gradient of one example. Here one worker's batch takes the place of one example, so the result is
the number of workers beyond which averaging more gradients of this batch size helps little.

Averages over n ranks have the expected squared norm |G|^2 + tr(C) / n. So a step in which the mean squared norm of the
ranks' own gradients is L, and that of their average is A, gives unbiased estimates of both terms:
|G|^2 = (n A - L) / (n - 1) and tr(C) = (L - A) / (1 - 1 / n). Their ratio is biased, so both are averaged over many
steps first.
"""

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import Any

_SAMPLES = 200  # Number of latest samples that count, because the noise scale changes during training.
_LEAST = 10  # Minimum number of samples of an estimate.
_ERRORS = 2.0  # Standard errors on each side of the interval.
_WIDE = 2.0  # Maximum ratio of a bound of the interval to the estimate.


class NoiseScale:
    """Estimate of the noise scale of one optimizer's gradients."""

    def __init__(self) -> None:
        # Estimates of (|G|^2, tr(C)), one for each sample.
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._batch: int | None = None

    def add(self, local: Sequence[float], averaged: float, batch: int | None = None) -> None:
        """Add the norms of one step. Norms that are not finite, as after an overflow, are ignored.

        Args:
            local: Squared norm of each rank's own gradient.
            averaged: Squared norm of the average of these gradients.
            batch: Number of examples in a rank's batch, or None if unknown.
        """
        n, mean = len(local), fmean(local)
        if n > 1 and math.isfinite(mean) and math.isfinite(averaged):
            self._samples.append(((n * averaged - mean) / (n - 1), (mean - averaged) / (1 - 1 / n)))
            self._batch = batch

    def estimate(self) -> dict[str, Any] | None:
        """Return the estimate with the keys of ``hvd.stats()["noise_scale"]``, or None if it is too uncertain.

        The interval is that of the jackknife for the logarithm of the ratio.
        """
        samples = tuple(self._samples)
        count = len(samples)
        signal, noise = sum(s for s, _ in samples), sum(t for _, t in samples)
        rest = [(signal - s, noise - t) for s, t in samples]  # the sums without each of the samples
        if count < _LEAST or min(map(min, rest)) <= 0:
            return None
        logs = [math.log(t / s) for s, t in rest]
        middle = fmean(logs)
        error = math.sqrt((count - 1) / count * sum((x - middle) ** 2 for x in logs))
        width = math.exp(_ERRORS * error)
        if width > _WIDE:
            return None
        scale = noise / signal
        return {
            "workers": scale,
            "low": scale / width,
            "high": scale * width,
            "samples": count,
            "batch": self._batch,
            "examples": None if self._batch is None else scale * self._batch,
        }
