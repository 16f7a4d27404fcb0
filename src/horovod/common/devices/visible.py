"""GPUs visible to a process, and their assignment to the workers of a host.

CUDA_VISIBLE_DEVICES is a list of indices, UUIDs, prefixes of UUIDs (GPU-8a2f), and MIG devices (MIG-...). CUDA reads
the list up to the first unknown entry. An empty list, or -1 as first entry, hides all GPUs.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from horovod.common.devices.nvml import Gpu, Survey

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"


class VisibleError(ValueError):
    """Error if there are too few GPUs or their number is unknown. The message contains advice."""


def entries(text: str) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES up to the first invalid one. As in CUDA, duplicates hide all GPUs."""
    found: list[str] = []
    for part in text.split(","):
        entry = part.strip()
        if not entry or not (entry.isdecimal() or entry.startswith(("GPU-", "MIG-"))):
            break
        found.append(entry)
    return [] if len(set(found)) < len(found) else found


def known(names: Sequence[str], gpus: Sequence[Gpu]) -> list[str]:
    """Return the entries that denote these GPUs, up to the first entry that CUDA would not recognize."""
    found: list[str] = []
    for name in names:
        if name.isdecimal():
            fits = int(name) < len(gpus)
        elif name.startswith("MIG-GPU-"):  # drivers before version 470 use MIG-<UUID of the GPU>/<instance>/<instance>
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
    """Return the GPUs available to the workers of this host, and how they were determined.

    Each GPU is an entry for CUDA_VISIBLE_DEVICES. If this variable is set, its entries are used, and checked if NVML is
    available. Otherwise all GPUs are used, or their MIG devices instead.
    """
    given = environ.get(VARIABLE)
    if given is not None:
        names = entries(given)
        return (known(names, survey.gpus) if survey.gpus else names), f"{VARIABLE} there is {given!r}"
    found: list[str] = []
    for gpu in survey.gpus:
        found += gpu.slices if gpu.mig else [str(gpu.index)]
    return found, survey.reason or "as NVIDIA's driver says"


def cut(environ: Mapping[str, str], survey: Survey, workers: int, each: int) -> list[dict[str, str]]:
    """Return the environment variables for each worker of a host, by local rank.

    CUDA_VISIBLE_DEVICES assigns ``each`` GPUs to each worker, and no GPU to two workers.

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

    If ``each`` is above 0, these are the GPUs that ``cut`` assigns. Otherwise every worker sees all GPUs, and uses the
    GPU whose index is its local rank modulo the number of GPUs.

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
    """Return the GPU that an entry denotes, as a whole or by one of its MIG devices, or None if there is none."""
    for gpu in gpus:
        parts = [gpu.uuid, *gpu.slices]
        if name == str(gpu.index) or name.startswith(f"MIG-{gpu.uuid}") or any(p.startswith(name) for p in parts if p):
            return gpu
    return None


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
