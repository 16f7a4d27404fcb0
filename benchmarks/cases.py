"""Framework-independent benchmark cases: data sizes, repetitions, and the modes of each peer."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

KIB, MIB = 1 << 10, 1 << 20

# Shapes of 200 tensors of 4 KiB each.
MANY = [(1024,)] * 200


def resnet50() -> list[tuple[int, ...]]:
    """Return the shapes of ResNet-50's 161 parameters, in layer order (He et al. 2015)."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            out = 4 * width
            shapes += [(width, channels, 1, 1), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            shapes += [(out, width, 1, 1), (out,), (out,)]
            if block == 0:
                shapes += [(out, channels, 1, 1), (out,), (out,)]
            channels = out
    return [*shapes, (1000, 2048), (1000,)]


@dataclass(frozen=True)
class Case:
    """A benchmark case: one row of the result tables.

    Attributes:
        kind: "allreduce" for one tensor, "many" or "resnet" for a set of tensors, or the name of a network in TRAINING
            for a training step.
        label: Name of the case in the tables.
        bytes: Size of the data in bytes. For a training step, the number of examples per rank.
        inner: Number of operations per sample. A sample is their mean duration.
        samples: Number of samples.
    """

    kind: str
    label: str
    bytes: int
    inner: int
    samples: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return {"allreduce": [(self.bytes // 4,)], "many": MANY, "resnet": resnet50()}[self.kind]


def size_label(nbytes: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def allreduce(nbytes: int) -> Case:
    inner, samples = next(
        row[1:]
        for row in ((64 * KIB, 20, 25), (MIB, 5, 20), (16 * MIB, 1, 12), (64 * MIB, 1, 6), (1 << 62, 1, 4))
        if nbytes <= row[0]
    )
    return Case("allreduce", size_label(nbytes), nbytes, inner, samples)


def gradient_sets() -> list[Case]:
    resnet_bytes = 4 * sum(prod(shape) for shape in resnet50())
    return [
        Case("many", "200 x 4 KiB", 200 * 4 * KIB, 1, 12),
        Case("resnet", "ResNet-50 gradients", resnet_bytes, 1, 6),
    ]


# Networks to train, keyed by name. The value is (units per example, name of the unit) for computing the throughput.
TRAINING = {"char_gpt": (64, "characters"), "gpt_10m": (64, "characters"), "resnet18": (1, "images")}


def training_steps() -> list[Case]:
    """Return the benchmark cases that measure training steps, with several batch sizes per network."""
    shares = {"char_gpt": ((1, 20), (8, 10), (64, 4)), "gpt_10m": ((1, 4),), "resnet18": ((1, 8), (4, 4), (16, 3))}
    return [
        Case(kind, f"{kind}, {batch} a rank", batch, 1, samples)
        for kind, rows in shares.items()
        for batch, samples in rows
    ]


FULL = [4, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
QUICK = [4, 64 * KIB, MIB, 16 * MIB]


def _sets(*modes: str) -> dict[str, list[str]]:
    return {kind: list(modes) for kind in ("many", "resnet")}


def _training(mode: str) -> dict[str, list[str]]:
    return {kind: [mode] for kind in TRAINING}


_TORCH = {"allreduce": ["blocking"], **_sets("async", "blocking")}
_DDP = {**_sets("ddp"), **_training("step")}

DEFAULT = ["horovod", "optimizer", "horovod shared", "limit", "gloo", "DDP", "Open MPI"]  # columns

# For each column of the tables: the job to run, and the modes to try for each kind of case. A cell shows the result of
# the fastest mode. DDP and FSDP2 run in the processes of the gloo job. "on hvd" is torch.distributed with backend hvd.
COLUMNS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "horovod": ("horovod", {"allreduce": ["allreduce_"], **_sets("async"), **_training("step")}),
    # Horovod's optimizer with default arguments. Unlike the column "horovod", it includes autograd's work.
    "optimizer": ("horovod", _sets("optimizer")),
    # Horovod with tensors in shared memory. In the optimizer's case, all gradients are views of its buckets.
    "horovod shared": (
        "horovod",
        {"allreduce": ["shared"], **_sets("bucket views"), **_training("bucket views")},
    ),
    "limit": ("limit", {"allreduce": ["bare loop"]}),
    "gloo": ("torch", _TORCH),
    "DDP": ("torch", _DDP),
    "FSDP2": ("torch", {"gpt_10m": ["fsdp"]}),
    "hvd backend": ("torch-hvd", _TORCH),
    "DDP on hvd": ("torch-hvd", _DDP),
    "FSDP2 on hvd": ("torch-hvd", {"gpt_10m": ["fsdp"]}),
    "Open MPI": ("mpi", {"allreduce": ["blocking"], **_sets("blocking", "async", "one flat")}),
}
