"""Visible GPUs, the CPUs near them, and their assignment to a host's workers.

CUDA_VISIBLE_DEVICES is a list of indices, UUIDs, prefixes of UUIDs (GPU-8a2f), and MIG devices (MIG-...). CUDA reads
the list up to the first unknown entry. An empty list, or -1 as first entry, hides all GPUs.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from horovod.common.devices.nvml import Gpu, Numbers, Survey, Text

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"


class VisibleError(ValueError):
    """Raised if there are too few GPUs, or their number is unknown. The message suggests a fix."""


def entries(text: str) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES up to the first invalid one. As in CUDA, duplicates hide all GPUs."""
    found: list[str] = []
    for part in text.split(","):
        entry = part.strip()
        if not entry or not (entry.isdecimal() or entry.startswith(("GPU-", "MIG-"))):
            break
        found.append(entry)
    return [] if len(set(found)) < len(found) else found


def matching_entries(names: Sequence[str], gpus: Sequence[Gpu]) -> list[str]:
    """Return the CUDA_VISIBLE_DEVICES entries that refer to these GPUs, up to the first that CUDA would reject."""
    found: list[str] = []
    for name in names:
        if name.isdecimal():
            fits = int(name) < len(gpus)
        # Format used by drivers before version 470: MIG-<UUID of the GPU>/<instance>/<instance>.
        elif name.startswith("MIG-GPU-"):
            fits = any(gpu.mig and name.startswith(f"MIG-{gpu.uuid}") for gpu in gpus)
        elif name.startswith("MIG-"):
            fits = sum(part.startswith(name) for gpu in gpus for part in gpu.slices) == 1
        else:
            fits = sum(gpu.uuid.startswith(name) for gpu in gpus) == 1
        if not fits:
            break
        found.append(name)
    return found


def choices(environ: Mapping[str, str], survey: Survey) -> tuple[list[str], str]:
    """Return the GPUs available to this host's workers, and how they were determined.

    Each GPU is an entry for CUDA_VISIBLE_DEVICES. If this variable is set, its entries are used, and checked if NVML is
    available. If it is not set, all GPUs are used, or their MIG devices where MIG is enabled.
    """
    given = environ.get(VARIABLE)
    if given is not None:
        names = entries(given)
        return (matching_entries(names, survey.gpus) if survey.gpus else names), f"{VARIABLE} there is {given!r}"
    found: list[str] = []
    for gpu in survey.gpus:
        found += gpu.slices if gpu.mig else [str(gpu.index)]
    return found, survey.reason or "as NVIDIA's driver says"


def cut(environ: Mapping[str, str], survey: Survey, workers: int, each: int) -> list[dict[str, str]]:
    """Return each worker's environment variables on a host, by local rank.

    CUDA_VISIBLE_DEVICES assigns ``each`` GPUs to each worker. No GPU is assigned to two workers.

    Args:
        environ: Environment of the host.
        survey: GPUs of the host.
        workers: Number of workers.
        each: Number of GPUs per worker.

    Raises:
        VisibleError: If there are too few GPUs, or if a worker would get several MIG devices. CUDA uses only one MIG
            device per process.
    """
    names, source = choices(environ, survey)
    needed = workers * each
    if len(names) < needed:
        count = "no GPU" if not names else f"only {_plural(len(names), 'GPU')}"
        raise VisibleError(
            f"--gpus-per-worker {each} for {_plural(workers, 'worker')} needs {_plural(needed, 'GPU')} on this host, "
            f"where {count} can be used ({source}); start fewer workers there, or let them share GPUs without "
            "--gpus-per-worker"
        )
    if each > 1 and any(name.startswith("MIG-") for name in names[:needed]):
        raise VisibleError(
            f"--gpus-per-worker {each}: the GPUs of this host are cut into MIG devices, of which CUDA uses one in a "
            "process; --gpus-per-worker 1 gives each worker one"
        )
    # Set CUDA_DEVICE_ORDER, because CUDA and NVML number GPUs differently by default. If the user has set
    # CUDA_VISIBLE_DEVICES, keep the meaning of its indices.
    numbered = any(name.isdecimal() for name in names[:needed])
    order = {ORDER: "PCI_BUS_ID"} if numbered and VARIABLE not in environ and ORDER not in environ else {}
    return [{VARIABLE: ",".join(names[worker * each : (worker + 1) * each]), **order} for worker in range(workers)]


def of_workers(environ: Mapping[str, str], survey: Survey, workers: int, each: int) -> list[list[Gpu]]:
    """Return the GPUs of each worker of a host.

    If ``each`` is above 0, every worker gets ``each`` separate GPUs. If it is 0, every worker sees all GPUs, and uses
    GPU ``local_rank % number of GPUs``.

    Raises:
        VisibleError: If there are no GPUs, or NVML has no information about them.
    """
    if each:
        cut_up = [entries(own[VARIABLE]) for own in cut(environ, survey, workers, each)]
    else:
        names, source = choices({}, survey)
        if not names:
            raise VisibleError(f"--gpu-affinity needs a GPU on this host, where none can be used ({source})")
        cut_up = [[names[worker % len(names)]] for worker in range(workers)]
    found = [[gpu for name in names if (gpu := gpu_of(name, survey.gpus)) is not None] for names in cut_up]
    if not all(found):
        raise VisibleError(
            f"--gpu-affinity: NVIDIA's management library does not tell of the GPUs here ({survey.reason})"
        )
    return found


def gpu_of(name: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU that a CUDA_VISIBLE_DEVICES entry refers to, or None if unknown.

    The entry can name the whole GPU or one of its MIG devices.
    """
    for gpu in gpus:
        parts = [gpu.uuid, *gpu.slices]
        if name == str(gpu.index) or name.startswith(f"MIG-{gpu.uuid}") or any(p.startswith(name) for p in parts if p):
            return gpu
    return None


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


# The code below reads from /sys which CPUs and network cards are near a GPU.
#
# /sys works even where NVML is missing or incomplete, and it also lists network cards. The argument ``root`` is the
# location of /sys, which tests replace. Unreadable information is treated as unknown.

SYS: Final = "/sys"

SWITCH, BRIDGE, NODE, FAR = "one switch", "host bridge", "one NUMA node", "between NUMA nodes"
_ORDER: Final = {distance: place for place, distance in enumerate((SWITCH, BRIDGE, NODE, FAR, ""))}


class AffinityError(ValueError):
    """Raised if the process cannot be bound to the CPUs near its GPUs."""


class Near(msgspec.Struct, frozen=True):
    """Location of a PCI device: its NUMA node, the nearby CPUs and its PCI bridges."""

    node: int = -1
    """NUMA node of the device, or -1 if it is unknown or the only one."""
    cpus: Numbers = []


class Card(msgspec.Struct, frozen=True):
    """Network card of this host, with its distance from a given PCI device."""

    name: Text
    """Name of the card, such as mlx5_0 or eth0."""
    distance: Text
    """Distance from the PCI device: SWITCH, BRIDGE, NODE, FAR, or "" if unknown."""
    infiniband: bool = False
    """True if the card supports InfiniBand or RoCE. NCCL can then transfer data without the CPU."""


class Port(msgspec.Struct, frozen=True):
    """Port of an InfiniBand or RoCE card."""

    device: Text
    number: int
    state: Text
    """State of the port, such as ACTIVE."""
    rate: Text
    """Data rate of the port, such as 400 Gb/sec (4X NDR)."""
    layer: Text
    """Link layer of the port: InfiniBand or Ethernet."""


def parse_cpus(text: str) -> list[int]:
    """Parse a list of CPU numbers such as "0-3,8". Return an empty list for invalid text."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(last) - int(first) > 65536:
            return []
        found += range(int(first), int(last) + 1)
    return sorted(set(found))


def shown_cpus(cpus: Iterable[int]) -> str:
    """Format CPU ids as text such as "0-3,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def near(bus: str, root: str = SYS) -> Near:
    """Return the NUMA node and the nearby CPUs of the PCI device with this address, such as 0000:3b:00.0."""
    folder = _device(bus, root)
    node = _read(folder / "numa_node").strip()
    cpus = parse_cpus(_read(folder / "local_cpulist"))
    return Near(int(node) if node.lstrip("-").isdecimal() else -1, cpus)


def cards(bus: str, root: str = SYS) -> list[Card]:
    """Return this host's network cards with their distance from a PCI device, nearest first.

    Interfaces that are not PCI devices, such as lo and bridges, are omitted.
    """
    found = []
    for kind in ("infiniband", "net"):
        for entry in _entries(Path(root) / "class" / kind):
            device = entry / "device"
            if _pci_path(device):
                found.append(Card(entry.name, _distance(_device(bus, root), device), kind == "infiniband"))
    return sorted(found, key=lambda card: (_ORDER[card.distance], not card.infiniband, card.name))


def ports(root: str = SYS) -> list[Port]:
    """Return the ports of all InfiniBand and RoCE cards."""
    return [
        Port(
            device=card.name,
            number=int(port.name),
            state=_read(port / "state").partition(":")[2].strip(),
            rate=_read(port / "rate").strip(),
            layer=_read(port / "link_layer").strip(),
        )
        for card in _entries(Path(root) / "class" / "infiniband")
        for port in _entries(card / "ports")
        if port.name.isdecimal()
    ]


def binding(gpus: Sequence[Gpu], allowed: Collection[int], root: str = SYS) -> list[int]:
    """Return the allowed CPUs near any of these GPUs. The locations come from NVML, or from /sys if NVML lacks them.

    Raises:
        AffinityError: If no nearby CPU is known or allowed.
    """
    near_cpus = {cpu for gpu in gpus for cpu in gpu.cpus or near(gpu.bus, root).cpus}
    named = f"GPU {', '.join(str(gpu.index) for gpu in gpus)}"
    if not near_cpus:
        raise AffinityError(f"which CPUs are near {named} is not known on this host, neither by NVML nor by /sys")
    if not near_cpus & set(allowed):
        raise AffinityError(
            f"the CPUs near {named}, {shown_cpus(near_cpus)}, are not among those that may be used on this host, "
            f"{shown_cpus(allowed)}"
        )
    return sorted(near_cpus & set(allowed))


def gpus_by_vendor(root: str = SYS) -> dict[str, list[str]]:
    """Return the PCI addresses of NVIDIA and AMD GPUs, even if no driver is installed."""
    vendors = {"0x10de": "NVIDIA", "0x1002": "AMD"}
    found: dict[str, list[str]] = {}
    for entry in _entries(Path(root) / "bus/pci/devices"):
        vendor = vendors.get(_read(entry / "vendor").strip())
        kind = _read(entry / "class").strip()
        if vendor and kind.startswith(("0x03", "0x12")):
            found.setdefault(vendor, []).append(entry.name)
    return found


def _device(bus: str, root: str) -> Path:
    return Path(root) / "bus/pci/devices" / bus.lower()


def _distance(one: Path, other: Path) -> str:
    """Classify the distance between two devices by the common prefix of their /sys/devices paths."""
    ways = _pci_path(one), _pci_path(other)
    if not all(ways):
        return ""
    common = 0
    while common < min(map(len, ways)) and ways[0][common] == ways[1][common]:
        common += 1
    if common > 1:  # devices behind the same root port are connected by a PCIe switch
        return SWITCH
    if common == 1:
        return BRIDGE
    nodes = [_read(device / "numa_node").strip() for device in (one, other)]
    if nodes[0] == nodes[1]:  # on a machine with a single NUMA node, Linux reports -1 for all devices
        return NODE if nodes[0] else ""
    return FAR if all(node.isdecimal() for node in nodes) else ""


def _pci_path(device: Path) -> tuple[str, ...]:
    """Return the sysfs path from the host bridge (pci0000:3a) to the device, or () if it is not a PCI device."""
    try:
        parts = device.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return ()
    bridges = [place for place, part in enumerate(parts) if part.startswith("pci") and ":" in part]
    if not bridges:
        return ()
    return tuple(part for part in parts[bridges[0] :] if ":" in part)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
