"""Compares the ranks' observations (``horovod.common.training_loop.observations``) and warns about mistakes.

The module also estimates the gradient noise scale, which tells how many workers are useful.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from horovod.common.contract import reasons
from horovod.common.contract.settings import Settings
from horovod.common.frontends import Job
from horovod.common.telemetry.message_bus import MessageBus
from horovod.common.training_loop.observations import OFF, training

if TYPE_CHECKING:
    from horovod._core import Engine

# The gradient noise scale is estimated from the norms of local and averaged gradients.
#
# Definition: S. McCandlish, J. Kaplan, D. Amodei, "An empirical model of large-batch training", 2018
# (https://arxiv.org/abs/1812.06162), appendix A.1. The noise scale is tr(C) / |G|^2, where G is the true gradient and C
# the covariance of the gradient of one example. This module treats the batch of one worker as one example. The result
# is therefore the number of workers beyond which averaging more gradients of this batch size helps little.
#
# The squared norm of an average over n ranks has the expected value |G|^2 + tr(C) / n. Let L be the mean squared norm
# of the ranks' own gradients in a step, and A the squared norm of their average. Then unbiased estimates of the two
# terms are |G|^2 = (n A - L) / (n - 1) and tr(C) = (L - A) / (1 - 1 / n). Their ratio is biased, so both terms are
# averaged over many steps before the division.

# Number of recent samples to use. It is limited because the noise scale changes during training.
_SAMPLES = 200
# Minimum number of samples for an estimate.
_LEAST = 10
# Half-width of the confidence interval, in standard errors.
_ERRORS = 2.0
# An estimate is reported only if its confidence interval's upper bound is at most this many times the estimate.
_WIDE = 2.0


class NoiseScale:
    """Estimate of the gradient noise scale for one optimizer."""

    def __init__(self) -> None:
        # Each sample is an estimate of (|G|^2, tr(C)) from one step.
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._batch: int | None = None

    def add(self, local: Sequence[float], averaged: float, batch: int | None = None) -> None:
        """Add the squared norms of one step. Non-finite norms, as after an overflow, are ignored.

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

        The confidence interval is computed by a jackknife over the logarithm of the ratio.
        """
        samples = tuple(self._samples)
        count = len(samples)
        signal, noise = sum(s for s, _ in samples), sum(t for _, t in samples)
        rest = [(signal - s, noise - t) for s, t in samples]  # leave-one-out sums for the jackknife
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


# Maximum number of parameters that a warning names.
_NAMED = 3
# Maximum number of unfinished comparisons, which lack some rank's report. Beyond it, the oldest is dropped.
_OPEN = 64
# Tolerated relative difference between ranks' samples of a parameter, because hardware can round differently.
_UNLIKE = 1e-5
_OFF = f"({OFF} turns such checks off)"

Notes = Mapping[int, Mapping[str, Any]]
"""Observations by rank, of all ranks that take part. Each has a ``remedy`` in the terms of its framework."""


def _weights(notes: Notes) -> str:
    found = _differences(notes)
    if not found:
        return ""
    return (
        f"after step {_step(notes)} parameter {found[0]}: did all ranks begin with the same parameters? If not, "
        f"{_remedy(notes)}"
    )


def _plain_weights(notes: Notes) -> str:
    found = _differences(notes)
    if not found:
        return ""
    if all(note["beside"] for note in notes.values()):
        one = next(iter(notes.values()))
        return (
            f"an optimizer ({one['of']}) is not distributed, though others of this job are, so its gradients are not "
            f"averaged: after its step {_step(notes)} parameter {', parameter '.join(found[:_NAMED])}. If ranks are to "
            f"train these parameters together, {_remedy(notes)}"
        )
    if not all(note["nothing_averaged"] for note in notes.values()):
        return ""
    return (
        f"after step {_step(notes)} no gradient has been averaged in this job, and parameter {found[0]}. If they are "
        f"to train one model together, {_remedy(notes)}"
    )


def _remedy(notes: Notes) -> str:
    text: str = next(iter(notes.values()))["remedy"]
    return text


def _step(notes: Notes) -> int:
    number: int = next(iter(notes.values()))["step"]
    return number


def _differences(notes: Notes) -> list[str]:
    """Describe each parameter that differs, such as "'w' differs between rank 0 and ranks 2-3"."""
    (first, mine), *others = notes.items()
    found = []
    for name, values in mine["values"].items():
        unlike = sorted(rank for rank, note in others if not _alike(values, note["values"].get(name)))
        if unlike:
            found.append(f"{name!r} differs between rank {first} and {reasons.named_ranks(unlike)}")
    return found


def _alike(own: Sequence[float], peer: Sequence[float] | None) -> bool:
    if peer is None or len(own) != len(peer):
        return False
    # Treat NaN as equal to everything, because NaN is not a sign of different parameters.
    if own == peer or any(x != x for x in (*own, *peer)):
        return True
    length = max(sum(x * x for x in own), sum(x * x for x in peer))
    return sum((x - y) ** 2 for x, y in zip(own, peer, strict=True)) <= _UNLIKE**2 * length


def _gradients(notes: Notes) -> str:
    if len({note["digest"] for note in notes.values()}) > 1:
        return ""
    return f"{reasons.named_ranks(sorted(notes))} computed the same gradients in the first step: {_samples(notes)}"


def _batches(notes: Notes) -> str:
    if len({tuple(note["digests"]) for note in notes.values()}) > 1:
        return ""
    return f"the data loaders of {reasons.named_ranks(sorted(notes))} gave the same first batches: {_samples(notes)}"


def _samples(notes: Notes) -> str:
    return f"do they train on the same samples? If that is not meant, {_remedy(notes)}"


def _epochs(notes: Notes) -> str:
    most = max(note["epochs"] for note in notes.values())
    ahead = [rank for rank, note in notes.items() if note["epochs"] == most]
    behind = [rank for rank, note in notes.items() if note["epochs"] < most]
    if not behind:
        return ""
    batches = sorted({notes[rank]["batches"] for rank in ahead})
    return (
        f"{reasons.named_ranks(sorted(ahead))} finished epoch {most} after "
        f"{' or '.join(map(str, batches))} batches, and {reasons.named_ranks(sorted(behind))} "
        f"{'has' if len(behind) == 1 else 'have'} more: from here on gradients of "
        "different epochs are averaged, and in the end a rank waits for others that have none. Give all ranks equally "
        "many batches (DistributedSampler, or drop_last=True), or call hvd.join() after the loop"
    )


_ABOUT: dict[str, Callable[[Notes], str]] = {
    "weights": _weights,
    "plain weights": _plain_weights,
    "gradients": _gradients,
    "batches": _batches,
    "epochs": _epochs,
}


class Comparison:
    """Rank 0's comparison of the ranks' reports about the same object, for example an optimizer."""

    def __init__(self) -> None:
        self.noise: dict[str, NoiseScale] = {}
        """Noise scales of optimizers with averaged gradients, in order of their first samples."""
        self._open: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = {}
        self._warned: set[str] = set()

    def add(self, rank: int, note: Mapping[str, Any]) -> str:
        """Add a rank's report. Once all have arrived, return a warning if they reveal a mistake, else ""."""
        about, ranks = note["about"], note["ranks"]
        key = (about, note["of"], note["step"], tuple(ranks))
        by_rank = self._open.setdefault(key, {})
        by_rank[rank] = note
        if len(by_rank) < len(ranks):
            if len(self._open) > _OPEN:
                del self._open[next(iter(self._open))]
            return ""
        del self._open[key]
        if about == "noise":
            local = [by_rank[one]["local"] for one in ranks]
            self.noise.setdefault(note["of"], NoiseScale()).add(local, note["averaged"], note["batch"])
            return ""
        text = _ABOUT[about]({one: by_rank[one] for one in ranks})
        subject = _SUBJECT.get(about, about)
        if not text or subject in self._warned:
            return ""
        self._warned.add(subject)
        return text


_SUBJECT = {"gradients": "samples", "batches": "samples"}
"""Common subject of observations that show the same mistake, which is reported only once."""


class Checks:
    """One rank's checks for training mistakes."""

    def __init__(
        self, job: Job, engine: "Engine", bus: MessageBus, settings: Settings, warn: Callable[[str], None]
    ) -> None:
        self._rank, self._engine = job.rank, engine
        self._warn = warn
        self._comparison = Comparison()
        self._on = job.size > 1 and settings.flag("HOROVOD_TRAINING_CHECKS")
        bus.on("training", self._on_observation)
        if self._on:
            training.open(lambda note: self._forward(bus, note), lambda: int(engine.stats()["bytes"]))

    def noise_scale(self) -> dict[str, Any] | None:
        """Return rank 0's gradient noise scale for the first optimizer, or None if unknown."""
        first = next(iter(self._comparison.noise.values()), None)
        return None if first is None else first.estimate()

    def _forward(self, bus: MessageBus, note: dict[str, Any]) -> None:
        if self._rank == 0:
            bus.send_to_self("training", **note)
        else:
            bus.send("training", to=0, **note)

    def _on_observation(self, rank: int, note: dict[str, Any]) -> None:
        text = self._comparison.add(rank, note)
        if text:
            self._warn(f"{text} {_OFF}")

    def close(self) -> None:
        """Stop the checks. Rank 0 warns if the job has trained without averaging any gradients."""
        ended = self._engine.ended()
        if self._on and self._rank == 0 and (ended is None or ended[0] == "left") and training.nothing_averaged():
            self._warn(
                f"no gradient was averaged in this job, though rank 0 has taken {training.plain_steps} steps of an "
                f"optimizer. If the ranks are to train one model together, {training.remedy} {_OFF}"
            )
        training.close()
