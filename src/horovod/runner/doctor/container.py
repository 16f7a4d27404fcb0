"""Facts about the container of this process, if it runs in one. No function here raises."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from horovod.common.contract import cgroups
from horovod.runner.doctor.report import ContainerReport

SHM = "dev/shm"
SPACES = ("ipc", "mnt", "pid")
_SIGNS = {"run/.containerenv": "podman", ".dockerenv": "docker"}
_VARIABLES = {
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}


def examine(environ: Mapping[str, str] = os.environ, root: str = "/") -> ContainerReport:
    """Return the facts. `environ` is a worker's environment; proc, sys, dev and run are read below `root`."""
    memory, tasks = cgroups.memory(root), cgroups.tasks(root)
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
    """Return the runtime, by its variables and files; files matter, since sshd does not pass variables."""
    for variable, kind in _VARIABLES.items():
        if environ.get(variable):
            return kind
    for path, kind in _SIGNS.items():
        if os.path.exists(os.path.join(root, path)):
            return kind
    return environ.get("container", "")[:64]  # systemd's convention: lxc, oci, systemd-nspawn


def _shm(path: str) -> tuple[int, str]:
    """Return the size of the file system in bytes, -1 if unknown, and why it cannot be written to."""
    try:
        stat = os.statvfs(path)
        size = stat.f_blocks * stat.f_frsize or -1  # 0 means a tmpfs without limit
    except OSError as error:
        return -1, _why(error)
    try:
        os.close(os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))  # an unnamed file, so none is left
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):  # these mean that unnamed files are not supported
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
