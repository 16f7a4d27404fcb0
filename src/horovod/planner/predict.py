"""Predict a job's efficiency, limiting factor, cost, and the effects of configuration changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from horovod.planner import simulate
from horovod.planner.network import Layout, Network
from horovod.planner.profile import Profile
from horovod.planner.simulate import FACTORS, Settings, Step
from horovod.planner.units import show_bandwidth

_GOOD = 0.97
"""Efficiency above which computation is reported as the limit."""
_THRESHOLDS = tuple(1 << shift for shift in range(20, 27))
"""Fusion thresholds to try, in bytes (1 to 64 MiB)."""
_BOUNDS = {
    "bandwidth": "bandwidth-bound",
    "latency": "latency-bound",
    "stragglers": "straggler-bound",
    "overhead": "overhead-bound",
}


@dataclass(frozen=True)
class Prediction:
    """Predicted training job. Times are in seconds.

    Attributes:
        model: Name of the model.
        layout: Hosts and workers.
        network: Links.
        settings: Settings of the job.
        batch: Samples per worker and step.
        single: Simulated step of a single worker.
        step: Simulated step of the job.
        ceilings: For each factor of ``FACTORS``, the efficiency of a job that only this factor limits.
        phases: Seconds that one worker needs for data, forward, backward and optimizer.
        dataset: Number of samples per epoch, or 0 if unknown.
        extrapolates: Sentences about inputs outside the measured range.
        variants: For each change of the configuration, the efficiency and samples per second, by the name of the
            change.
    """

    model: str
    layout: Layout
    network: Network
    settings: Settings
    batch: int
    single: float
    step: Step
    ceilings: dict[str, float]
    phases: dict[str, float]
    dataset: int = 0
    extrapolates: tuple[str, ...] = ()
    variants: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def efficiency(self) -> float:
        """Scaling efficiency: the job's throughput relative to that of the same number of independent workers."""
        return self.single / self.step.seconds

    @property
    def throughput(self) -> float:
        """Throughput of the whole job, in samples per second."""
        return self.layout.workers * self.batch / self.step.seconds

    @property
    def epochs_per_hour(self) -> float | None:
        """Epochs per hour, or None if the number of samples per epoch is unknown."""
        return 3600 * self.throughput / self.dataset if self.dataset else None

    @property
    def limit(self) -> str:
        """Sentence that names the job's bottleneck and the best efficiency that it permits."""
        if self.layout.workers == 1:
            return "compute-bound: one worker does not communicate"
        name = min(self.ceilings, key=lambda factor: self.ceilings[factor])
        ceiling = self.ceilings[name]
        if self.efficiency >= _GOOD or ceiling >= _GOOD:
            return f"compute-bound: communication leaves {self.efficiency:.0%} of the workers' throughput"
        return f"{_BOUNDS[name]}: ceiling {ceiling:.0%}"


def predict(
    profile: Profile, layout: Layout, net: Network, settings: Settings, batch: int | None = None, variants: bool = False
) -> Prediction:
    """Predict the performance of a training job.

    Args:
        profile: Profile of the model.
        layout: Hosts and workers.
        net: Links.
        settings: Settings of the job.
        batch: Samples per worker and step. None means the batch size of the profile.
        variants: True to also predict the effects of configuration changes.
    """
    notes = _extrapolations(profile, layout, net, batch)
    scaled = profile if batch is None else profile.scaled(batch)
    step = simulate.simulate(scaled, layout, net, settings)
    ceilings = {}
    for factor in FACTORS:
        only = simulate.simulate(scaled, layout, net, settings, frozenset(FACTORS) - {factor})
        ceilings[factor] = scaled.seconds.step / only.seconds
    found = Prediction(
        model=profile.name,
        layout=layout,
        network=net,
        settings=settings,
        batch=scaled.batch,
        single=scaled.seconds.step,
        step=step,
        ceilings=ceilings,
        phases=msgspec.structs.asdict(scaled.seconds),
        dataset=profile.dataset,
        extrapolates=tuple(notes),
    )
    if variants and layout.workers > 1:
        found = replace(found, variants=_variants(profile, found))
    return found


def _variants(profile: Profile, base: Prediction) -> dict[str, tuple[float, float]]:
    """Predict the effects of several configuration changes. Each change is applied on its own."""
    net, settings, layout = base.network, base.settings, base.layout
    faster = msgspec.structs.replace(net, bandwidth=2 * net.bandwidth)
    changes: dict[str, tuple[Network, Settings, int]] = {
        f"bandwidth x2 ({show_bandwidth(faster.bandwidth)})": (faster, settings, base.batch),
        f"batch x2 ({2 * base.batch})": (net, settings, 2 * base.batch),
    }
    if settings.compression == "none":
        changes["compression fp16"] = (net, replace(settings, compression="fp16"), base.batch)
    if settings.algorithm != "hierarchical" and layout.nodes > 1 and layout.per_node > 1:
        changes["algorithm hierarchical"] = (net, replace(settings, algorithm="hierarchical"), base.batch)
    if profile.device == "cpu":
        smaller = [threshold for threshold in _THRESHOLDS if threshold < settings.fusion_threshold]
        others = [replace(settings, fusion_threshold=threshold) for threshold in smaller]
        best = min(others, key=lambda one: simulate.simulate(profile, layout, net, one).seconds, default=settings)
        if best is not settings:
            changes[f"fusion threshold {best.fusion_threshold >> 20} MiB"] = (net, best, base.batch)
    if settings.local_steps == 1:
        changes["local steps H = 8"] = (net, replace(settings, local_steps=8), base.batch)
    found = {}
    for name, (other_net, other, batch) in changes.items():
        one = profile.scaled(batch)
        seconds = simulate.simulate(one, layout, other_net, other).seconds
        found[name] = (one.seconds.step / seconds, layout.workers * batch / seconds)
    return found


def _extrapolations(profile: Profile, layout: Layout, net: Network, batch: int | None) -> Sequence[str]:
    """Return a warning for each input outside the measured range."""
    notes = []
    if net.workers is None:
        notes.append(
            "the network is not calibrated: transfers are taken to reach the line rate, and computation to be as fast "
            "beside them as alone"
        )
    else:
        low, high = net.workers
        if layout.workers > 1 and not low <= layout.workers <= high:
            measured = f"{low}" if low == high else f"{low} to {high}"
            notes.append(f"{layout.workers} workers; the network was calibrated with {measured}")
        calibrated = net.calibrated_at or net.bandwidth
        if abs(net.bandwidth / calibrated - 1) > 0.01:
            notes.append(f"bandwidth {show_bandwidth(net.bandwidth)}; calibrated at {show_bandwidth(calibrated)}")
    if batch is not None and batch != profile.batch:
        notes.append(
            f"batch {batch}; the profile was made with {profile.batch}, and its times are scaled with the batch"
        )
    if layout.workers > 1 and profile.variation.steps == 0 and profile.variation.ranks == 0:
        notes.append("the profile has no variation between steps and ranks, so waiting for the slowest is not included")
    elif layout.workers > 1 and profile.workers == 1:
        notes.append("the profile is of one worker, so lasting differences between workers are not included")
    return notes
