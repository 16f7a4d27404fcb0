"""Profile of one training step: its compute times, and its gradients in the order of the backward pass.

A profile is a JSON file that ``hvd.profile`` records or ``describe`` derives from a model description. Times are in
seconds. The file contains the version of its format, and must not contain unknown fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, pstdev

import msgspec

from horovod.common import dtypes
from horovod.planner import units

FORMAT = 1
_BUILT_IN = Path(__file__).with_name("profiles")


class Gradient(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One gradient tensor in a profile."""

    name: str
    elements: int
    dtype: str
    ready: float
    """Seconds from the start of backward until the gradient is ready."""

    @property
    def nbytes(self) -> int:
        """Size of the gradient in bytes."""
        return self.elements * dtypes.ITEM_SIZES[dtypes.CODES[self.dtype]]


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Typical durations, in seconds, of a step's phases on one worker, without communication."""

    data: float
    """Time from the end of the last step to the start of forward, including the wait for the next batch."""
    forward: float
    backward: float
    optimizer: float

    @property
    def step(self) -> float:
        """Duration of a step of one worker, in seconds."""
        return self.data + self.forward + self.backward + self.optimizer


class Variation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Standard deviations of the compute time, relative to its mean."""

    steps: float = 0.0
    """Variation between the steps of one rank."""
    ranks: float = 0.0
    """Variation between the means of the ranks."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Profile of one training step.

    Attributes:
        format: Version of the file format.
        name: Name of the model.
        source: Origin of the figures.
        device: "cpu" if the engine's algorithms reduce the gradients in host memory. "gpu" if a library such as NCCL
            reduces them.
        batch: Samples per worker and step.
        workers: Number of workers that were measured.
        steps: Number of steps that were measured, or 0 for a derived profile.
        dataset: Number of samples per epoch, or 0 if unknown.
        seconds: Compute times.
        variation: Relative variation of the compute times.
        gradients: Gradients in the order in which they become ready.
    """

    format: int
    name: str
    source: str = ""
    device: str
    batch: int
    workers: int = 1
    steps: int = 0
    dataset: int = 0
    seconds: Times
    variation: Variation = Variation()
    gradients: tuple[Gradient, ...]

    @property
    def nbytes(self) -> int:
        """Size of all gradients in bytes."""
        return sum(gradient.nbytes for gradient in self.gradients)

    def scaled(self, batch: int) -> Profile:
        """Return the profile for a different batch size.

        The times for data, forward and backward are assumed to be proportional to the batch size. The time of the
        optimizer is assumed to be constant.
        """
        return self._stretched(batch / self.batch, batch, self.seconds.optimizer)

    def at(self, samples_per_second: float) -> Profile:
        """Return the profile scaled to a device with a different throughput. All times change by the same factor."""
        factor = self.batch / samples_per_second / self.seconds.step
        return self._stretched(factor, self.batch, self.seconds.optimizer * factor)

    def _stretched(self, factor: float, batch: int, optimizer: float) -> Profile:
        s = self.seconds
        return msgspec.structs.replace(
            self,
            batch=batch,
            seconds=Times(s.data * factor, s.forward * factor, s.backward * factor, optimizer),
            gradients=tuple(msgspec.structs.replace(g, ready=g.ready * factor) for g in self.gradients),
        )


def _check(profile: Profile) -> None:
    """Check all fields of a profile. Raises ValueError if a field is invalid. The message names the field."""
    if profile.format != FORMAT:
        raise ValueError(f"`format` must be {FORMAT}, got {profile.format}: it was written by another version")
    if profile.device not in ("cpu", "gpu"):
        raise ValueError(f"`device` must be cpu or gpu, got {profile.device!r}")
    for name, value in (("batch", profile.batch), ("workers", profile.workers)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}")
    numbers = {**msgspec.structs.asdict(profile.seconds), **msgspec.structs.asdict(profile.variation)}
    for name, number in numbers.items():
        if not 0 <= number < float("inf"):
            raise ValueError(f"`{name}` must be a number of at least 0, got {number}")
    if profile.seconds.step <= 0:
        raise ValueError("`seconds` must have a phase above 0")
    last = 0.0
    for g in profile.gradients:
        if g.elements < 1:
            raise ValueError(f"`elements` of {g.name!r} must be at least 1, got {g.elements}")
        if g.dtype not in dtypes.CODES:
            raise ValueError(f"`dtype` of {g.name!r} must be one of {dtypes.SUPPORTED}, got {g.dtype!r}")
        if not last <= g.ready <= profile.seconds.backward + 1e-8:
            raise ValueError(
                f"`ready` of {g.name!r} must be between that of the gradient before it ({last}) and `backward` "
                f"({profile.seconds.backward}), got {g.ready}"
            )
        last = g.ready


def built_in() -> list[str]:
    """Return the names of the bundled profiles."""
    return units.names_in(_BUILT_IN)


def load(name_or_path: str | Path) -> Profile:
    """Read a profile from a file, or load a bundled profile by name.

    Args:
        name_or_path: Path of a file, or the name of one of the package's profiles, such as ``vgg16``.

    Raises:
        ValueError: If the file is not a valid profile. The message names the file and the field.
        OSError: If the file cannot be read.
    """
    return units.load(Profile, "profile", _BUILT_IN, _check, name_or_path)


def save(profile: Profile, path: str | Path) -> None:
    """Write a profile to a JSON file. Raises ValueError if the profile is invalid."""
    _check(profile)
    text = msgspec.json.format(msgspec.json.encode(profile), indent=1).decode()
    text = re.sub(r"\{\s*(\"name\": [^{}]*?)\s*\}", lambda m: "{" + re.sub(r"\n\s*", " ", m[1]) + "}", text)
    Path(path).write_text(text + "\n")


# Profiles can be derived for models that were never run. A backward pass is assumed to take twice as long as a forward
# pass. The times of both passes are divided between the layers in proportion to their FLOPs. The backward pass visits
# the layers in reverse order. A layer's gradients become ready when its backward computation ends.

FORWARD_SHARE = 1 / 3
"""Fraction of the compute time that forward takes, if backward takes twice as long as forward."""


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layer of a model description.

    Attributes:
        name: Name of the layer, and prefix of the names of its gradients.
        parameters: Number of elements of each parameter, by name. Can be empty.
        flops: Floating-point operations of a forward pass for one sample.
    """

    name: str
    parameters: Mapping[str, int]
    flops: float


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of a model, with its layers in the order of the forward pass."""

    name: str
    layers: Sequence[Layer]
    dtype: str = "float32"
    device: str = "gpu"
    dataset: int = 0
    """Number of samples per epoch, or 0 if unknown."""


def load_model(path: str | Path) -> Model:
    """Read a model description from a JSON file. Raises ValueError if it is invalid."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Model)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is not a model description: {error}") from None


def profile_of_model(model: Model, batch: int, samples_per_second: float, source: str = "") -> Profile:
    """Derive the profile of a model on one device.

    Args:
        model: The model.
        batch: Samples per step.
        samples_per_second: Training throughput of one device at this batch size.
        source: Text that names the origin of the throughput.

    Raises:
        ValueError: If the throughput is not positive or the layers have no FLOPs.
    """
    total = sum(layer.flops for layer in model.layers)
    if samples_per_second <= 0 or total <= 0:
        raise ValueError(
            "throughput and the FLOPs of the layers must be above 0, "
            f"got {samples_per_second} samples/s and {total} FLOPs"
        )
    step = batch / samples_per_second
    backward = step * (1 - FORWARD_SHARE)
    done = 0.0
    gradients = []
    for layer in reversed(model.layers):
        done += layer.flops
        ready = round(backward * min(done / total, 1.0), 9)
        for name, elements in layer.parameters.items():
            gradients.append(Gradient(f"{layer.name}.{name}", elements, model.dtype, ready))
    return Profile(
        format=FORMAT,
        name=model.name,
        source=source,
        device=model.device,
        batch=batch,
        dataset=model.dataset,
        seconds=Times(0.0, round(step * FORWARD_SHARE, 9), round(backward, 9), 0.0),
        gradients=tuple(gradients),
    )


# The functions below compute profiles from steps recorded by a frontend (``horovod.torch.profiling``).


class RecordedStep(msgspec.Struct, frozen=True):
    """One rank's times for one step in seconds, excluding waits for communication."""

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


def profile_of_recording(ranks: Sequence[RecordedRank]) -> Profile:
    """Derive the profile of a job from the recorded steps of its ranks.

    Times are medians over steps and means over ranks. The wait for data is a mean over steps instead, because loaders
    that read ahead often deliver several batches in a burst. Gradients that occur in fewer than half of the steps are
    omitted.

    Raises:
        ValueError: If no step or no gradient was recorded.
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
