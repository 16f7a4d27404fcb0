"""Linux features that launcher and workers share: limits of control groups, open files, memory files and Unix peers.

Containers, services and batch systems use control groups. This module supports versions 1 and 2 and nested groups. The
argument ``root`` is the directory that contains proc and sys, which tests replace. Memory files (memfd) have no
names. They pass the job's key to workers, and the ranks on a host use them as shared memory.
"""

import errno
import os
import resource
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass


def make_room(count: int, at_least: int | None = None) -> None:
    """Raise this process's soft limit on open files if ``count`` more descriptors would exceed it.

    The limit is raised only as far as needed, because ``select`` cannot handle descriptors of 1024 and above.

    Args:
        count: Number of descriptors to make room for.
        at_least: Number that is sufficient if the hard limit is too low for ``count``. Default: ``count``.

    Raises:
        ValueError: If the hard limit is too low. The message names the limit and the number needed.
    """
    used = len(os.listdir("/proc/self/fd"))
    needed = used + count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if at_least is not None and hard != resource.RLIM_INFINITY:
        needed = max(soft, min(needed, hard), used + at_least)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ValueError(
            f"this process may have {hard} files open, but in this job it needs {needed}; raise the limit on this host "
            "(ulimit -Hn, or LimitNOFILE of the service that starts it)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


MEMFD_REFUSED = (
    "memfd_create is refused ({}), without which no job can start: it hands the job's key to workers, and ranks share "
    "memory by it. A container's seccomp profile has to allow it, as those of Docker and Podman do"
)

_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_NO_ROOM = "no file can be made in memory: {} (of this process: ulimit -n; of the machine: fs.file-max, memory)"


class MemoryFileError(OSError):
    """Raised if the system does not allow an in-memory file. The message says which system setting to change."""

    def __str__(self) -> str:  # override this, because an OSError's text includes the error number
        return str(self.strerror)


def create_memory_file(name: str) -> int:
    """Create an empty, sealable in-memory file and return its close-on-exec descriptor. /proc shows its ``name``.

    Raises:
        MemoryFileError: If the file cannot be created.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        text = MEMFD_REFUSED if error.errno in _FORBIDDEN else _NO_ROOM
        raise MemoryFileError(error.errno, text.format(error.strerror)) from None


# Kinds of namespaces. User and process ids are comparable only between processes in the same namespaces.
_KINDS = ("user", "pid")
# Format of struct ucred: process id, user id and group id.
CREDENTIALS = struct.Struct("3i")


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return the peer's (process id, user id, group id), as of the time when it connected or began to listen.

    The ids are relative to this process's namespaces.
    """
    pid, uid, gid = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid, gid


def peer_user(sock: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket."""
    return peer_credentials(sock)[1]


def is_this_user_or_root(sock: socket.socket) -> bool:
    """Return True if the peer is a process in this container and belongs to this user or root.

    Abstract sockets belong to a network namespace, which containers can share. Processes of other containers are not
    trusted, even if they have the same user id.
    """
    pid, uid, _ = peer_credentials(sock)
    if pid <= 0:  # the kernel reports no process id for a peer in another pid namespace
        return False
    if uid == 0:
        return True
    return uid == os.geteuid() and all(
        _namespace(f"/proc/{pid}", kind) == _namespace("/proc/self", kind) for kind in _KINDS
    )


def _namespace(process: str, kind: str) -> str | None:
    try:
        return os.readlink(f"{process}/ns/{kind}")
    except OSError:
        return None


# Limits above this many bytes mean "no limit", for which version 1 of control groups reports a number near 2^63.
_UNLIMITED = 1 << 60
# Files with the memory limit, the usage and the reclaimable usage, by cgroup version.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


@dataclass(frozen=True)
class Capacity:
    """Limit and unused amount of a resource. Each is the minimum over a control group and its parents."""

    limit: int
    free: int


@dataclass(frozen=True)
class Groups:
    """Directories of one cgroup controller that this process can see: its control group and the group's parents."""

    version: int
    folders: list[str]


def groups(controller: str, own: str, mounts: str) -> Groups | None:
    """Return the directories of this process's control groups for one controller, or None if not found.

    Args:
        controller: Name of the controller: "cpu", "memory" or "pids".
        own: Contents of /proc/self/cgroup.
        mounts: Contents of /proc/self/mountinfo.
    """
    paths = {name: path for _, names, path in _fields(own) for name in names.split(",")}
    second: Groups | None = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup" and controller in kind[2].split(",") and controller in paths:
            return Groups(1, _upwards(place[4], place[3], paths[controller]))
        if kind[0] == "cgroup2" and "" in paths and second is None:
            second = Groups(2, _upwards(place[4], place[3], paths[""]))
    return second


def _fields(own: str) -> Iterator[tuple[str, str, str]]:
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        yield number, names, path


def _upwards(point: str, mounted: str, path: str) -> list[str]:
    """Return the directories of a control group and its parents, up to the mount point.

    In a container, the mount point often shows the container's own group, while ``path`` is that group's name on the
    host. A directory of that name does not exist in the container.

    Args:
        point: Mount point.
        mounted: Group that is visible at the mount point.
        path: Group of the process.
    """
    below = path[len(mounted.rstrip("/")) :] if (path + "/").startswith(mounted.rstrip("/") + "/") else ""
    parts = [part for part in below.split("/") if part]
    if ".." in parts:  # the process's group is not below the mounted group, so use the mount point alone
        parts = []
    return [os.path.join(point, *parts[:count]) for count in range(len(parts), -1, -1)]


def cpu_limit(cpu_max: str = "", quota_us: str = "", period_us: str = "") -> float | None:
    """Return the number of cores that a control group can use, or None if there is no limit or the text is invalid.

    Args:
        cpu_max: Text of version 2's cpu.max, such as "150000 100000".
        quota_us: Text of version 1's cpu.cfs_quota_us.
        period_us: Text of version 1's cpu.cfs_period_us.
    """
    quota, _, period = cpu_max.strip().partition(" ") if cpu_max.strip() else (quota_us.strip(), "", period_us.strip())
    if not (quota.isascii() and quota.isdecimal() and period.isascii() and period.isdecimal()) or int(period) == 0:
        return None  # control groups represent "no limit" as "max" in version 2, and as -1 in version 1
    return int(quota) / int(period)


def cores(root: str = "/") -> float | None:
    """Return this process's CPU quota in cores, or None if there is no limit. CPU affinity is ignored."""
    found = []
    for _, folder in _folders("cpu", root):
        v1 = [_read(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period")]
        found.append(cpu_limit(_read(f"{folder}/cpu.max"), *v1))
    return min((each for each in found if each is not None), default=None)


def usable_cores() -> int:
    """Return the number of usable cores (at least 1), given the CPU affinity and the quota."""
    quota, allowed = cores(), len(os.sched_getaffinity(0))
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def memory(root: str = "/") -> Capacity | None:
    """Return the memory limit and the unused memory in bytes, or None if there is no limit.

    Shared memory and in-memory files count as used memory. Reclaimable page cache does not.
    """
    limits = []
    for version, folder in _folders("memory", root):
        limit, used, cached = _FILES[version]
        most = _number(_read(f"{folder}/{limit}"))
        if most is not None and most < _UNLIMITED:
            back = dict(
                line.split()[:2] for line in _read(f"{folder}/memory.stat").splitlines() if len(line.split()) > 1
            )
            taken = (_number(_read(f"{folder}/{used}")) or 0) - (_number(back.get(cached, "")) or 0)
            limits.append(Capacity(most, max(0, most - taken)))
    return _least(limits)


def tasks(root: str = "/") -> Capacity | None:
    """Return the limit on processes and threads, and how many more can start, or None if there is no limit."""
    limits = []
    for _, folder in _folders("pids", root):
        most = _number(_read(f"{folder}/pids.max"))
        if most is not None:
            limits.append(Capacity(most, max(0, most - (_number(_read(f"{folder}/pids.current")) or 0))))
    return _least(limits)


def _least(limits: list[Capacity]) -> Capacity | None:
    return Capacity(min(each.limit for each in limits), min(each.free for each in limits)) if limits else None


def _folders(controller: str, root: str) -> list[tuple[int, str]]:
    found = groups(
        controller, _read(os.path.join(root, "proc/self/cgroup")), _read(os.path.join(root, "proc/self/mountinfo"))
    )
    if found is None:
        return []
    return [(found.version, os.path.join(root, folder.lstrip("/"))) for folder in found.folders]


def _number(text: str) -> int | None:
    """Parse a number. Return None for "max" and for invalid text."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
