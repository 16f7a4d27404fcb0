"""Simulate one training step, in which gradients become ready, are fused, and are reduced in order.

Operations run in order on one stream, concurrently with the backward pass. An operation starts when the previous one is
done and all ranks know that its last gradient is ready. The engine's own code decides which gradients share an
operation, up to the fusion threshold:

- Tensors in host memory: all gradients of a step are fused together, because the engine turns repeating steps into a
  schedule (core/agree/schedule.cc). If the threshold is above the size of the model, nothing overlaps with the backward
  pass.
- GPUs: gradients that become ready within a time window are fused. The window is at least the cycle time. While the
  network is busy, gradients accumulate, which makes the window longer. So the simulation tries windows of 1, 2, 4, ...
  cycle times, and uses the one with the shortest step.

The choice of fused gradients does not depend on the network, so a faster network never makes a predicted step slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import msgspec

from horovod import _core
from horovod.common import dtypes
from horovod.planner import network
from horovod.planner.network import Layout, Network
from horovod.planner.profile import Gradient, Profile

COMPRESSION = {"none": 1.0, "fp16": 2 / 4, "bf16": 2 / 4, "int8": 65 / 256}
"""Bytes on the wire per byte of a float32 gradient."""

FACTORS = ("bandwidth", "latency", "stragglers", "overhead")
"""Reasons why a step takes longer than the step of a single worker."""


@dataclass(frozen=True)
class Settings:
    """Settings of the job.

    Attributes:
        algorithm: One of ``costs.ALGORITHMS``.
        compression: Key of ``COMPRESSION``.
        fusion_threshold: Maximum size of a fused operation in bytes. 0 disables fusion.
        cycle: Seconds to wait for more gradients before fusing.
        local_steps: Number of steps between synchronizations. If above 1, parameters are averaged after the last step.
    """

    algorithm: str = "auto"
    compression: str = "none"
    fusion_threshold: int = 128 << 20
    cycle: float = 1e-3
    local_steps: int = 1

    def __post_init__(self) -> None:
        for name, accepted in (("algorithm", network.ALGORITHMS), ("compression", tuple(COMPRESSION))):
            if getattr(self, name) not in accepted:
                raise ValueError(f"`{name}` must be one of {', '.join(accepted)}, got {getattr(self, name)!r}")
        if self.local_steps < 1:
            raise ValueError(f"`local_steps` must be at least 1, got {self.local_steps}")
        if self.fusion_threshold < 0 or self.cycle <= 0:
            raise ValueError(
                f"`fusion_threshold` must be at least 0 and `cycle` above 0, got {self.fusion_threshold}, {self.cycle}"
            )


@dataclass(frozen=True)
class Operation:
    """One reduction of one or more fused gradients."""

    ready: float
    """Seconds from the start of backward until all gradients of the operation are ready."""
    nbytes: int
    largest: int
    """Size of the largest gradient, in bytes."""


@dataclass(frozen=True)
class Step:
    """Result of a simulated step. All times are in seconds.

    Attributes:
        seconds: Duration of the step.
        communication: Time during which the network is busy.
        exposed: Part of the step during which workers only wait for communication.
        stragglers: Part of the step during which workers wait for the computation of the slowest worker.
        overhead: Extra time of the computation because of concurrent communication.
        operations: Number of reductions.
        nbytes: Bytes that each worker reduces, after compression.
        algorithms: Names of the algorithms in use. The first one reduces the most bytes.
    """

    seconds: float
    communication: float
    exposed: float
    stragglers: float
    overhead: float
    operations: int
    nbytes: int
    algorithms: tuple[str, ...]

    @property
    def hidden(self) -> float:
        """Duration in seconds of the communication that overlaps with computation."""
        return max(self.communication - self.exposed, 0.0)


@lru_cache(maxsize=1024)
def _fused(gradients: tuple[Gradient, ...], window: float, threshold: int, compression: str) -> tuple[Operation, ...]:
    """Return the fused operations for a given length of the fusion window. An infinite window fuses all gradients."""
    found: list[Operation] = []
    windows = _windows(gradients, window, threshold) if window < math.inf else [(gradients, 0.0)]
    for waiting, ready in windows:
        sizes = [gradient.nbytes for gradient in waiting]
        for members in _core.fuse(sizes, [dtypes.CODES[gradient.dtype] for gradient in waiting], threshold):
            wire = [_on_wire(waiting[i], compression) for i in members]
            last = max(waiting[i].ready for i in members)
            found.append(Operation(max(ready, last), sum(wire), max(wire)))
    return tuple(found)


def _windows(
    gradients: tuple[Gradient, ...], window: float, threshold: int
) -> Iterator[tuple[tuple[Gradient, ...], float]]:
    """Yield the gradients and the end time of each fusion window.

    A window ends when it expires or is full, or when the backward pass ends.
    """
    start = 0
    while start < len(gradients):
        end = gradients[start].ready + window
        stop, filled = start, 0
        while stop < len(gradients) and gradients[stop].ready <= end and (filled < threshold or stop == start):
            filled += gradients[stop].nbytes
            stop += 1
        full = stop == len(gradients) or filled >= threshold
        yield gradients[start:stop], gradients[stop - 1].ready if full else end
        start = stop


def _on_wire(gradient: Gradient, compression: str) -> int:
    factor = COMPRESSION[compression] if gradient.dtype == "float32" else 1.0
    return math.ceil(gradient.nbytes * factor)


def _lengths(profile: Profile, settings: Settings) -> list[float]:
    """Return candidate lengths of the fusion window in seconds."""
    if profile.device == "cpu":
        return [math.inf]
    if settings.fusion_threshold == 0:
        return [0.0]
    lengths, length = [], settings.cycle
    while length < profile.seconds.backward:
        lengths.append(length)
        length *= 2
    return [*lengths, length]


@dataclass(frozen=True)
class _Exchange:
    end: float
    """Seconds from the start of backward until the last operation is done."""
    busy: float
    operations: tuple[Operation, ...]
    algorithms: dict[str, int]


def _exchange(profile: Profile, layout: Layout, net: Network, settings: Settings, stretch: float) -> _Exchange:
    """Return when all gradients have been reduced, if computation takes ``stretch`` times as long as in the profile."""
    agreed = network.agreement(layout, net)
    allreduce = network.Allreduce(settings.algorithm, layout, net, profile.device)
    best: _Exchange | None = None
    for length in _lengths(profile, settings):
        operations = _fused(profile.gradients, length, settings.fusion_threshold, settings.compression)
        end, busy, algorithms = 0.0, 0.0, {}  # type: float, float, dict[str, int]
        for operation in operations:
            seconds, name = allreduce.predict(operation.nbytes, operation.largest)
            end = max(end, operation.ready * stretch + agreed) + seconds
            busy += seconds
            algorithms[name] = algorithms.get(name, 0) + operation.nbytes
        if best is None or end < best.end:
            best = _Exchange(end, busy, operations, algorithms)
    assert best is not None
    return best


def expected_slowest(deviation: float, workers: int) -> float:
    """Return the expected maximum of ``workers`` normally distributed times, relative to their mean.

    Uses Blom's approximation of the expected maximum (Statistical Estimates and Transformed Beta-Variables, 1958).
    """
    if workers == 1 or deviation == 0:
        return 0.0
    return deviation * NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def simulate(
    profile: Profile, layout: Layout, net: Network, settings: Settings, without: frozenset[str] = frozenset()
) -> Step:
    """Simulate one training step of a job.

    Args:
        profile: Gradients and compute times.
        layout: Hosts and workers.
        net: Links.
        settings: Settings of the job.
        without: Elements of ``FACTORS`` to leave out, in order to determine their cost.
    """
    net = _without(net, without)
    phases = profile.seconds
    if layout.workers == 1:
        return Step(phases.step, 0.0, 0.0, 0.0, 0.0, 0, 0, ())
    variation = profile.variation
    # A worker's slow and fast steps partly cancel out between two synchronizations.
    deviation = math.hypot(variation.steps / math.sqrt(settings.local_steps), variation.ranks)
    late = 0.0 if "stragglers" in without else expected_slowest(deviation, layout.workers)
    stretch = (1 + late) * (1 + net.overhead)
    backward = phases.backward * stretch
    if settings.local_steps > 1:
        # Parameters are averaged after the last local step, so communication does not overlap with computation.
        together = msgspec.structs.replace(
            profile, gradients=tuple(msgspec.structs.replace(g, ready=0.0) for g in profile.gradients)
        )
        exchange = _exchange(together, layout, net, settings, 1.0)
        exposed, busy = exchange.end / settings.local_steps, exchange.busy / settings.local_steps
    else:
        exchange = _exchange(profile, layout, net, settings, stretch)
        exposed, busy = max(exchange.end - backward, 0.0), exchange.busy
    stragglers = phases.step * late
    overhead = (phases.forward + phases.backward) * (1 + late) * net.overhead
    return Step(
        seconds=phases.step + stragglers + overhead + exposed,
        communication=busy,
        exposed=exposed,
        stragglers=stragglers,
        overhead=overhead,
        operations=len(exchange.operations),
        nbytes=sum(operation.nbytes for operation in exchange.operations),
        algorithms=tuple(sorted(exchange.algorithms, key=lambda name: -exchange.algorithms[name])),
    )


def _without(net: Network, factors: frozenset[str]) -> Network:
    changes: dict[str, float] = {}
    if "bandwidth" in factors:
        changes |= {"bandwidth": math.inf, "intra_bandwidth": math.inf, "gamma": 0.0}
    if "latency" in factors:
        changes |= {"latency": 0.0, "intra_latency": 0.0}
    if "overhead" in factors:
        changes["overhead"] = 0.0
    return msgspec.structs.replace(net, **changes) if changes else net
