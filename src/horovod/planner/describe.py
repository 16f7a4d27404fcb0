"""Profiles of models that were not run, derived from their layers, FLOPs, and the throughput of a device.

Backward is assumed to take twice as long as forward. The times of both are distributed over the layers in proportion to
FLOPs. A layer's gradients become ready at the end of its part of backward, which visits the layers in reverse order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from horovod.planner.profile import FORMAT, Gradient, Profile, Times

FORWARD_SHARE = 1 / 3
"""Fraction of the compute time that forward takes, if backward takes twice as long as forward."""


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layer of a model description.

    Attributes:
        name: Name of the layer, and prefix of the names of its gradients.
        parameters: Number of elements of each parameter, by name; can be empty.
        flops: Floating-point operations of forward for one sample.
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


def profile_of(model: Model, batch: int, samples_per_second: float, source: str = "") -> Profile:
    """Return the profile of a model on one device.

    Args:
        model: The model.
        batch: Samples per step.
        samples_per_second: Training throughput of one device at this batch size.
        source: Text that says where the throughput comes from.

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
