"""Limits on the cores, memory and processes of this process, set by its control groups.

Containers, services and batch systems use control groups. This module supports versions 1 and 2 and nested groups. The
argument ``root`` is the directory that contains proc and sys, which tests replace.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

# Memory limits above this many bytes are treated as no limit. Without a limit, cgroup version 1 reports a number near
# 2^63.
_UNLIMITED = 1 << 60
# Files with the memory limit, the usage and the reclaimable usage, by cgroup version.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


@dataclass(frozen=True)
class Room:
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

    In a container, the group at the mount point is often the container's own group, while ``path`` is the group's name
    on the host. That name does not exist in the container.

    Args:
        point: Mount point.
        mounted: Group that is visible at the mount point.
        path: Group of the process.
    """
    below = path[len(mounted.rstrip("/")) :] if (path + "/").startswith(mounted.rstrip("/") + "/") else ""
    parts = [part for part in below.split("/") if part]
    if ".." in parts:  # this process is outside the mounted group
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
        return None  # no limit is "max" in version 2 and -1 in version 1
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


def memory(root: str = "/") -> Room | None:
    """Return the memory limit and the unused memory in bytes, or None if there is no limit.

    Shared memory and in-memory files count as used memory. Reclaimable page cache does not.
    """
    rooms = []
    for version, folder in _folders("memory", root):
        limit, used, cached = _FILES[version]
        most = _number(_read(f"{folder}/{limit}"))
        if most is not None and most < _UNLIMITED:
            back = dict(
                line.split()[:2] for line in _read(f"{folder}/memory.stat").splitlines() if len(line.split()) > 1
            )
            taken = (_number(_read(f"{folder}/{used}")) or 0) - (_number(back.get(cached, "")) or 0)
            rooms.append(Room(most, max(0, most - taken)))
    return _least(rooms)


def tasks(root: str = "/") -> Room | None:
    """Return the limit on processes and threads, and how many more can start, or None if there is no limit."""
    rooms = []
    for _, folder in _folders("pids", root):
        most = _number(_read(f"{folder}/pids.max"))
        if most is not None:
            rooms.append(Room(most, max(0, most - (_number(_read(f"{folder}/pids.current")) or 0))))
    return _least(rooms)


def _least(rooms: list[Room]) -> Room | None:
    return Room(min(each.limit for each in rooms), min(each.free for each in rooms)) if rooms else None


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
