"""Checks of a host's container limits, such as memory and /dev/shm. No function raises an exception."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence

from horovod.common.contract import kernel
from horovod.runner.base.linux import SHM_DEFAULT
from horovod.runner.doctor.report import OK, WARN, ContainerReport, Finding, HostReport, HostResult

SHM = "dev/shm"
SPACES = ("ipc", "mnt", "pid")
_SIGNS = {"run/.containerenv": "podman", ".dockerenv": "docker"}
_VARIABLES = {
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}


def examine(environ: Mapping[str, str] = os.environ, root: str = "/") -> ContainerReport:
    """Examine this container and return its limits.

    Args:
        environ: Environment of a worker.
        root: Folder that contains proc, sys, dev and run.
    """
    memory, tasks = kernel.memory(root), kernel.tasks(root)
    size, error = _shm(os.path.join(root, SHM))
    return ContainerReport(
        kind=_kind(environ, root),
        memory_limit=-1 if memory is None else memory.limit,
        tasks_limit=-1 if tasks is None else tasks.limit,
        tasks_free=-1 if tasks is None else tasks.free,
        shm=size,
        shm_error=error,
        machine=_machine(root),
        spaces=_spaces(root),
    )


def _kind(environ: Mapping[str, str], root: str) -> str:
    """Detect the container runtime from environment variables, or from files if sshd did not pass on the variables."""
    for variable, kind in _VARIABLES.items():
        if environ.get(variable):
            return kind
    for path, kind in _SIGNS.items():
        if os.path.exists(os.path.join(root, path)):
            return kind
    # systemd and some container runtimes set the variable `container`, for example to lxc, oci or systemd-nspawn.
    return environ.get("container", "")[:64]


def _shm(path: str) -> tuple[int, str]:
    """Return the size of the file system in bytes, and the reason why it is not writable.

    The size is -1 if unknown. The reason is empty if the file system is writable.
    """
    try:
        stat = os.statvfs(path)
        size = stat.f_blocks * stat.f_frsize or -1  # statvfs reports a size of 0 for a tmpfs without a size limit.
    except OSError as error:
        return -1, _why(error)
    try:
        # Test whether files can be written, with an unnamed file that the kernel removes when it is closed.
        os.close(os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        # If the file system does not support unnamed files, the test is inconclusive, so assume that it is writable.
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            return size, _why(error)
    return size, ""


def _why(error: OSError) -> str:
    return "it is not there" if error.errno == errno.ENOENT else error.strerror or str(error)


def _machine(root: str) -> str:
    try:
        with open(os.path.join(root, "proc/sys/kernel/random/boot_id"), encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _spaces(root: str) -> dict[str, str]:
    found = {}
    for name in SPACES:
        try:
            found[name] = os.readlink(os.path.join(root, f"proc/self/ns/{name}"))[:64]
        except OSError:
            continue
    return found


# Minimum and recommended number of bytes of /dev/shm per rank, for its data loaders
SHM_EACH = SHM_DEFAULT
SHM_GOOD = 256 << 20
# Bytes of memory that one rank uses after importing PyTorch
MEMORY_EACH = 300 << 20
TASKS_EACH = 128  # Number of processes and threads that one rank starts, including thread pools and data loaders
_GIB = 1 << 30


def is_scarce(result: HostResult, report: HostReport) -> bool:
    """Return True if /dev/shm has too little free space for the data loaders of this host's ranks."""
    return 0 <= report.shm_free <= result.slots * SHM_EACH


def shared_memory(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that /dev/shm is large enough for data loaders. Horovod's own shared memory does not use it."""
    for result, report in _reports(results):
        size = f"{max(1, -(-result.slots * SHM_GOOD // _GIB))}g"
        if report.container.shm_error:
            yield Finding(
                WARN,
                "shared memory",
                result.host,
                f"programs can put nothing into /dev/shm: {report.container.shm_error}",
                "horovod does not, but workers of PyTorch's DataLoader, multiprocessing, NCCL and MPIs do: mount a "
                f"tmpfs there that can be written (`docker run --shm-size={size}`)",
            )
        elif is_scarce(result, report):
            ranks = "one rank" if result.slots == 1 else f"{result.slots} ranks"
            yield Finding(
                WARN,
                "shared memory",
                result.host,
                f"/dev/shm has {report.shm_free >> 20} MiB left of {report.container.shm >> 20}, for {ranks}",
                "horovod does not use it, but workers of PyTorch's DataLoader do, and fail when it is full: "
                f"`docker run --shm-size={size}`, or in Kubernetes a volume of medium Memory there",
            )
        else:
            yield Finding(OK, "shared memory", result.host, "/dev/shm is there")


def memory_limit(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that the container's memory limit is high enough for the ranks."""
    for result, report in _reports(results):
        if report.container.memory_limit < 0:
            continue
        limit = f"{report.memory_available >> 20} MiB are free of the {report.container.memory_limit >> 20} MiB"
        if report.memory_available < result.slots * MEMORY_EACH:
            yield Finding(
                WARN,
                "memory",
                result.host,
                f"{limit} that the container may take, for {result.slots} ranks",
                f"a rank with PyTorch takes about {MEMORY_EACH >> 20} MiB before it holds any data, and the kernel "
                "kills what goes beyond: `docker run --memory`, in Kubernetes limits.memory, in Slurm --mem",
            )
        else:
            yield Finding(OK, "memory", result.host, f"{limit} of the container")


def tasks(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that the container's limit on processes and threads is high enough for the ranks."""
    for answer, report in _reports(results):
        if 0 <= report.container.tasks_free < answer.slots * TASKS_EACH:
            yield Finding(
                WARN,
                "limits",
                answer.host,
                f"{report.container.tasks_free} processes and threads are left of the container's "
                f"{report.container.tasks_limit}, for {answer.slots} ranks; frameworks start many",
                "`docker run --pids-limit=4096`, in Kubernetes podPidsLimit of the kubelet",
            )


def neighbours(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Warn if several hosts are containers on the same machine.

    They are treated as separate hosts and cannot use shared memory with each other.

    Yields:
        A warning for each such machine.
    """
    machines: dict[str, list[tuple[HostResult, HostReport]]] = {}
    for answer, report in _reports(results):
        if report.container.machine:
            machines.setdefault(report.container.machine, []).append((answer, report))
    for found in machines.values():
        if len({report.container.spaces.get("mnt", "") for _, report in found}) < 2:
            continue
        names = ", ".join(answer.host for answer, _ in found[:8])
        advice = "one container with the ranks of all of them lets these share memory"
        if all(report.devices.survey.gpus for _, report in found) and _have_disjoint_gpus(found):
            advice += "; GPUs of different containers reach each other's memory (CUDA IPC) only with --ipc=host and "
            advice += "--pid=host for each"
        yield Finding(
            WARN, "containers", "", f"{names} are containers of one machine, whose ranks talk by TCP only", advice
        )


def _have_disjoint_gpus(found: Sequence[tuple[HostResult, HostReport]]) -> bool:
    """Return True if the containers have different IPC namespaces or different pid namespaces."""
    return any(len({report.container.spaces.get(name, "") for _, report in found}) > 1 for name in ("ipc", "pid"))


def shown(report: HostReport) -> str:
    """Describe the container and its limits for the table, or return "-" if there are none."""
    container = report.container
    parts = [container.kind] if container.kind else []
    if container.memory_limit >= 0:
        parts.append(f"memory {container.memory_limit >> 20} MiB")
    if container.tasks_limit >= 0:
        parts.append(f"{container.tasks_limit} tasks")
    return ", ".join(parts) or "-"


def _reports(results: Sequence[HostResult]) -> Iterator[tuple[HostResult, HostReport]]:
    for answer in results:
        if answer.report is not None:
            yield answer, answer.report


CHECKS = (shared_memory, memory_limit, tasks, neighbours)
