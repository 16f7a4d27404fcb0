"""Gradient noise scale, estimated from the norms of local and averaged gradients without side effects.

Definition: S. McCandlish, J. Kaplan, D. Amodei, "An empirical model of large-batch training", 2018
(https://arxiv.org/abs/1812.06162), appendix A.1. The noise scale is tr(C) / |G|^2, where G is the true gradient and C
the covariance of the gradient of one example. This module treats the batch of one worker as one example. The result is
therefore the number of workers beyond which averaging more gradients of this batch size helps little.

An average over n ranks has the expected squared norm |G|^2 + tr(C) / n. Let L be the mean squared norm of the ranks'
own gradients in a step, and A the squared norm of their average. Then unbiased estimates of the two terms are |G|^2 =
(n A - L) / (n - 1) and tr(C) = (L - A) / (1 - 1 / n). Their ratio is biased, so both terms are averaged over many steps
before the division.
"""

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import Any

# Number of latest samples to use, because the noise scale changes during training.
_SAMPLES = 200
# Minimum number of samples for an estimate.
_LEAST = 10
# Half width of the confidence interval in standard errors.
_ERRORS = 2.0
# Maximum ratio of the interval's upper bound to the estimate. Wider estimates are not reported.
_WIDE = 2.0


class NoiseScale:
    """Estimate of the noise scale of one optimizer's gradients."""

    def __init__(self) -> None:
        # Each sample is an estimate of (|G|^2, tr(C)) from one step.
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._batch: int | None = None

    def add(self, local: Sequence[float], averaged: float, batch: int | None = None) -> None:
        """Add the squared norms of one step. Ignore norms that are not finite, as after an overflow.

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
        """Return the values of ``hvd.stats()["noise_scale"]``, or None if the estimate is too uncertain.

        A jackknife of the logarithm of the ratio gives the confidence interval.
        """
        samples = tuple(self._samples)
        count = len(samples)
        signal, noise = sum(s for s, _ in samples), sum(t for _, t in samples)
        rest = [(signal - s, noise - t) for s, t in samples]  # sums without one sample each, for the jackknife
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
