"""Tables of GPUs: a line for each host in the table of hosts, and a row for each GPU below. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from horovod.common.devices.affinity import shown_cpus
from horovod.common.devices.nvml import Gpu, Survey
from horovod.common.devices.versions import text_of
from horovod.runner.doctor.report import DeviceReport, HostAnswer, Place

NOTHING = "-"
MOST = 64  # maximum GPUs listed


def count(report: DeviceReport) -> str:
    """Return text such as `8 (H200)` or `4 of 8 (H200)`."""
    found = report.survey.gpus
    if not found:
        notes = {"NVIDIA": "without a driver that works", "AMD": "of AMD, which are not looked into"}
        texts = [
            f"{len(addresses)} {notes.get(vendor, vendor)}" for vendor, addresses in sorted(report.hardware.items())
        ]
        return ", ".join(texts) or "none"
    names = sorted({gpu.name for gpu in found})
    total = sum(len(gpu.slices) if gpu.mig else 1 for gpu in found)
    some = f"{len(report.usable)} of {total}" if len(report.usable) < total else str(total)
    return f"{some} ({names[0]}{', ...' if len(names) > 1 else ''})"


def driver(report: DeviceReport) -> str:
    """Return text such as `580.82.07, CUDA 13.0, MPS in ...`."""
    if not report.survey.driver:
        return NOTHING
    parts = [report.survey.driver, f"CUDA {report.survey.cuda or 'unknown'}"]
    parts += ["libcuda.so.1 cannot be loaded"] if report.driver_error else []
    parts += [f"MPS in {report.mps}"] if report.mps else []
    return ", ".join(parts)


def nccl(report: DeviceReport) -> str:
    """Return text such as `2.28.9 (nvidia-nccl-cu13: /usr/.../libnccl.so.2)`."""
    if not report.nccl:
        return "none"
    version = text_of(report.nccl_version) if report.nccl_version else "unknown version"
    packages = ", ".join(report.nccl_packages) if report.nccl_source == "a package of Python" else report.nccl_source
    return f"{version} ({packages}: {report.nccl})"


def direct(report: DeviceReport) -> str:
    """Return text such as `mlx5_0 400 Gb/sec, mlx5_1 down; GPUDirect by nvidia_peermem`."""
    if not report.ports:
        return NOTHING
    ports = [f"{port.device} {port.rate if port.state == 'ACTIVE' else 'down'}" for port in report.ports[:16]]
    return f"{', '.join(ports)}; GPUDirect by {report.direct or 'nothing'}"


def listed(answers: Sequence[HostAnswer]) -> list[tuple[str, ...]]:
    """Return a row for each GPU of all hosts, below the titles; empty if there is none."""
    rows = [
        (answer.host, *_row(gpu, place))
        for answer in answers
        if answer.report is not None
        for gpu, place in _with_places(answer.report.devices)
    ]
    titles = ("GPUs", "number", "model", "memory", "capability", "mode", "PCI", "UUID", "near it")
    return [titles, *rows[:MOST]] if rows else []


def _with_places(report: DeviceReport) -> Iterator[tuple[Gpu, Place | None]]:
    for at, gpu in enumerate(report.survey.gpus):
        yield gpu, report.places[at] if at < len(report.places) else None


def _row(gpu: Gpu, place: Place | None) -> tuple[str, ...]:
    return (
        str(gpu.index),
        gpu.name or NOTHING,
        f"{gpu.memory / (1 << 30):.0f} GiB" if gpu.memory else NOTHING,
        ".".join(map(str, gpu.capability)) if gpu.capability[0] else NOTHING,
        f"MIG, {len(gpu.slices)} devices" if gpu.mig else gpu.mode or NOTHING,
        gpu.bus or NOTHING,
        gpu.uuid or NOTHING,
        _near(gpu, place),
    )


def _near(gpu: Gpu, place: Place | None) -> str:
    """Return text such as `CPUs 0-31 (node 0), mlx5_0 (one switch)`."""
    parts = []
    cpus = gpu.cpus or (place.near.cpus if place is not None else [])
    if cpus:
        node = f" (node {place.near.node})" if place is not None and place.near.node >= 0 else ""
        parts.append(f"CPUs {shown_cpus(cpus)}{node}")
    if place is not None and place.cards and place.cards[0].distance:
        nearest = [card.name for card in place.cards if card.distance == place.cards[0].distance]
        parts.append(f"{', '.join(nearest[:4])} ({place.cards[0].distance})")
    return ", ".join(parts) or NOTHING


def between(answers: Sequence[HostAnswer]) -> list[tuple[str, ...]]:
    """Return the connections between the GPUs of each host, a row for each kind; empty if no host has two GPUs."""
    rows = [
        (answer.host, kind, pairs)
        for answer in answers
        if answer.report is not None
        for kind, pairs in _kinds(answer.report.devices.survey)
    ]
    return [("between GPUs", "over", "pairs"), *rows] if rows else []


def _kinds(survey: Survey) -> Iterator[tuple[str, str]]:
    kinds: dict[str, list[str]] = {}
    for pair in survey.pairs:
        kind = "NVLink" if pair.nvlink else pair.distance or "unknown"
        kind += f"; no peer access: {pair.refused}" if pair.refused else ""
        kinds.setdefault(kind, []).append(f"{pair.first}-{pair.second}")
    for kind, pairs in kinds.items():
        everything = len(pairs) == len(survey.pairs) and len(pairs) > 1
        yield kind, "all" if everything else " ".join(pairs[:32]) + (" ..." if len(pairs) > 32 else "")
