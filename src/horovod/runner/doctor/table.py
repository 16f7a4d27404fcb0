"""Text output of the doctor, with tables of hosts, GPUs and connections, and all findings."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence

from horovod._version import __version__
from horovod.common.devices.libraries import text_of
from horovod.common.devices.nvml import Gpu, Survey
from horovod.common.devices.visible import shown_cpus
from horovod.runner.command import check_build
from horovod.runner.doctor import container, mpi
from horovod.runner.doctor.report import FAIL, OK, WARN, DeviceReport, Diagnosis, Finding, HostReport, HostResult, Place

MAX_GPUS = 64  # Maximum number of GPUs in the table


def gpu_count(report: DeviceReport) -> str:
    """Describe the number and model of the usable GPUs, such as `8 (H200)` or `4 of 8 (H200)`."""
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
    """Describe the GPU driver, such as `580.82.07, CUDA 13.0, MPS in ...`."""
    if not report.survey.driver:
        return NOTHING
    parts = [report.survey.driver, f"CUDA {report.survey.cuda or 'unknown'}"]
    parts += ["libcuda.so.1 cannot be loaded"] if report.driver_error else []
    parts += [f"MPS in {report.mps}"] if report.mps else []
    return ", ".join(parts)


def nccl(report: DeviceReport) -> str:
    """Describe the NCCL library, such as `2.28.9 (nvidia-nccl-cu13: /usr/.../libnccl.so.2)`."""
    if not report.nccl:
        return "none"
    version = text_of(report.nccl_version) if report.nccl_version else "unknown version"
    packages = ", ".join(report.nccl_packages) if report.nccl_source == "a package of Python" else report.nccl_source
    return f"{version} ({packages}: {report.nccl})"


def direct(report: DeviceReport) -> str:
    """Describe the host's network cards, such as `mlx5_0 400 Gb/sec, mlx5_1 down; GPUDirect by nvidia_peermem`."""
    if not report.ports:
        return NOTHING
    ports = [f"{port.device} {port.rate if port.state == 'ACTIVE' else 'down'}" for port in report.ports[:16]]
    return f"{', '.join(ports)}; GPUDirect by {report.direct or 'nothing'}"


def listed(results: Sequence[HostResult]) -> list[tuple[str, ...]]:
    """Return a table of the GPUs of all hosts, with a header row. It is empty if there are no GPUs."""
    rows = [
        (answer.host, *_row(gpu, place))
        for answer in results
        if answer.report is not None
        for gpu, place in _with_places(answer.report.devices)
    ]
    titles = ("GPUs", "number", "model", "memory", "capability", "mode", "PCI", "UUID", "near it")
    return [titles, *rows[:MAX_GPUS]] if rows else []


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
    """Describe the CPUs and network cards near a GPU, such as `CPUs 0-31 (node 0), mlx5_0 (one switch)`."""
    parts = []
    cpus = gpu.cpus or (place.near.cpus if place is not None else [])
    if cpus:
        node = f" (node {place.near.node})" if place is not None and place.near.node >= 0 else ""
        parts.append(f"CPUs {shown_cpus(cpus)}{node}")
    if place is not None and place.cards and place.cards[0].distance:
        nearest = [card.name for card in place.cards if card.distance == place.cards[0].distance]
        parts.append(f"{', '.join(nearest[:4])} ({place.cards[0].distance})")
    return ", ".join(parts) or NOTHING


def between(results: Sequence[HostResult]) -> list[tuple[str, ...]]:
    """Return a table of the interconnects between the GPUs of each host, with one row per type.

    The table is empty if no host has two GPUs.
    """
    rows = [
        (answer.host, kind, pairs)
        for answer in results
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


NOTHING = "-"
MAX_PAIRS = 64
OF_SOME = ("container", "driver", "InfiniBand", "MPI")
"""Titles of rows that are left out if no host has a value."""


def show(diagnosis: Diagnosis, width: int) -> str:
    """Format a diagnosis as text.

    There is one column per host if all columns fit into `width` characters. Otherwise, there is one section per host.
    """
    answers = diagnosis.results
    parts = [f"horovod {__version__}, {len(answers)} host{'s' if len(answers) != 1 else ''}", ""]
    parts += _hosts(answers, width)
    pairs = list(_pairs(answers))
    if pairs:
        parts += ["", *_columns([("between hosts", "address", "round trip", "one stream"), *pairs[:MAX_PAIRS]])]
        parts += [f"... and {len(pairs) - MAX_PAIRS} more pairs"] if len(pairs) > MAX_PAIRS else []
    for rows in (listed(answers), between(answers)):
        parts += ["", *_columns(rows)] if rows else []
    parts += ["", *_findings(diagnosis.findings)]
    return "\n".join(line.rstrip() for line in parts) + "\n"


def _hosts(results: Sequence[HostResult], width: int) -> list[str]:
    known = [(answer, answer.report) for answer in results if answer.report is not None]
    rows = [(title, *(value(answer, report) for answer, report in known)) for title, value in ROWS]
    rows = [row for row in rows if row[0] not in OF_SOME or set(row[1:]) != {NOTHING}]
    lines = _columns([("", *(answer.host for answer, _ in known)), *rows]) if known else []
    if len(known) > 1 and max(map(len, lines)) > width:
        lines = _sections([answer.host for answer, _ in known], rows)
    unknown = [answer.host for answer in results if answer.report is None]
    return [*lines, *(["", f"not examined: {', '.join(unknown)}"] if unknown else [])]


def _sections(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format the values that all hosts share, followed by the remaining values of each host."""
    common = [(title, values[0]) for title, *values in rows if len(set(values)) == 1]
    lines = ["on all hosts", *(f"  {line}" for line in _columns(common))] if common else []
    for index, name in enumerate(names):
        own = [(title, values[index]) for title, *values in rows if len(set(values)) > 1]
        lines += [name, *(f"  {line}" for line in _columns(own))] if own else []
    return lines


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _pairs(results: Sequence[HostResult]) -> Iterator[tuple[str, str, str, str]]:
    names = {answer.rank: answer.host for answer in results}
    for answer in results:
        for each in answer.report.measured if answer.report else ():
            name = f"{answer.host} -> {names.get(each.peer, '?')}"
            where = f"{each.address} ({each.interface})"
            if each.error:
                yield name, where, NOTHING, each.error
            else:
                yield name, where, f"{each.round_trip_us:.0f} us", f"{each.gigabits:.2f} Gbit/s"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield one line per problem, followed by a count of all findings.

    The worst problems come last, where users look first.
    """
    for level in (WARN, FAIL):
        for finding in findings:
            if finding.level == level:
                who = f" {finding.host}:" if finding.host else ""
                yield f"{level:<4} {finding.check}:{who} {finding.text}"
                if finding.advice:
                    yield from (f"     -> {line}" for line in finding.advice.splitlines() if line)
    count = {level: sum(finding.level == level for finding in findings) for level in (OK, WARN, FAIL)}
    yield f"{count[OK]} checks OK, {count[WARN]} warnings, {count[FAIL]} failures"


def _connection(result: HostResult, report: HostReport) -> str:
    return f"ssh, {result.connect_seconds:.1f} s" if result.remote else "this machine"


def _engine(result: HostResult, report: HostReport) -> str:
    return "cannot be loaded" if report.engine_error else f"loads; {', '.join(report.ciphers) or 'no encryption'}"


def _frameworks(result: HostResult, report: HostReport) -> str:
    return ", ".join(check_build.described(report.frameworks)) or "none"


def _cores(result: HostResult, report: HostReport) -> str:
    quota = "" if report.quota is None else f", quota {report.quota:g}"
    return f"{report.cores} of {report.all_cores}{quota}, load {report.load:.1f}"


def _memory(result: HostResult, report: HostReport) -> str:
    return f"{_size(report.memory_available)} of {_size(report.memory)} available"


def _limits(result: HostResult, report: HostReport) -> str:
    return ", ".join(f"{name} {_limit(soft)}" for name, (soft, _) in report.limits.items())


def _limit(value: int) -> str:
    return "unlimited" if value in (-1, resource.RLIM_INFINITY) else str(value)


def _size(value: int) -> str:
    if value < 0:
        return NOTHING
    return f"{value / (1 << 30):.1f} GiB" if value >= 1 << 30 else f"{value >> 20} MiB"


def _clock(result: HostResult, report: HostReport) -> str:
    return f"{result.clock_offset:+.2f} s" if result.remote else "this one"


def _network(result: HostResult, report: HostReport) -> str:
    shown = []
    for each in report.interfaces:
        if each.up and not each.loopback and each.addresses:
            speed = f" {each.speed / 1000:g} Gbit/s" if each.speed else ""
            shown.append(f"{each.name} {' '.join(a.text for a in each.addresses)}{speed} MTU {each.mtu}")
    return "; ".join(shown) or "none"


ROWS: tuple[tuple[str, Callable[[HostResult, HostReport], str]], ...] = (
    ("connection", _connection),
    ("horovod", lambda _, report: report.version),
    ("Python", lambda _, report: report.python),
    ("engine", _engine),
    ("frameworks", _frameworks),
    ("cores", _cores),
    ("memory", _memory),
    ("container", lambda _, report: container.shown(report)),
    ("/dev/shm free", lambda _, report: _size(report.shm_free)),
    ("limits", _limits),
    ("clock", _clock),
    ("network", _network),
    ("GPU", lambda _, report: gpu_count(report.devices)),
    ("driver", lambda _, report: driver(report.devices)),
    ("NCCL", lambda _, report: nccl(report.devices)),
    ("InfiniBand", lambda _, report: direct(report.devices)),
    ("MPI", lambda _, report: mpi.shown(report.mpi)),
    ("kernel", lambda _, report: report.kernel),
)
