"""Limits of control groups, read from file trees as kernels show them: version 1, version 2, and in containers."""

import pytest

from horovod.common.contract import cgroups
from horovod.common.contract.cgroups import Groups, Room

V1 = """31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
OWN_V1 = "8:pids:/a/b\n4:memory:/a\n1:cpu,cpuacct:/\n0::/a\n"
OWN_V2 = "0::/system.slice/job.scope\n"


@pytest.mark.parametrize(
    ("controller", "own", "mounts", "expected"),
    [
        ("cpu", OWN_V1, V1, Groups(1, ["/sys/fs/cgroup/cpu,cpuacct"])),
        ("pids", OWN_V1, V1, Groups(1, ["/sys/fs/cgroup/pids/a/b", "/sys/fs/cgroup/pids/a", "/sys/fs/cgroup/pids"])),
        (
            "memory",
            OWN_V2,
            V2,
            Groups(2, [f"/sys/fs/cgroup{rest}" for rest in ("/system.slice/job.scope", "/system.slice", "")]),
        ),
        # In a container: its own group is mounted, under the name that the host knows.
        (
            "memory",
            "4:memory:/docker/0af3\n",
            V1.replace("0:32 /", "0:32 /docker/0af3"),
            Groups(1, ["/sys/fs/cgroup/memory"]),
        ),
        (
            "memory",
            "4:memory:/docker/0af3/rank\n",
            V1.replace("0:32 /", "0:32 /docker/0af3"),
            Groups(1, ["/sys/fs/cgroup/memory/rank", "/sys/fs/cgroup/memory"]),
        ),
        ("memory", "4:memory:/docker/0af34\n", V1.replace("0:32 /", "0:32 /docker/0af3"), None),
        ("memory", "0::/../../outside\n", V2, Groups(2, ["/sys/fs/cgroup"])),
        ("memory", "", V2, None),
        ("memory", OWN_V2, "", None),
        ("memory", OWN_V2, "nonsense - cgroup2\n1 2 3 - \n", None),
    ],
)
def test_where_groups_are(controller, own, mounts, expected):
    found = cgroups.groups(controller, own, mounts)
    if expected is None and found is not None:  # mounted, but not above this process: only the mount itself is found
        assert found == Groups(1, ["/sys/fs/cgroup/memory"])
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("texts", "cores"),
    [
        (("150000 100000\n",), 1.5),
        (("max 100000\n",), None),
        (("100000\n",), None),
        (("100000 0\n",), None),
        (("", "200000\n", "100000\n"), 2.0),
        (("", "-1\n", "100000\n"), None),
        (("max 100000\n", "200000\n", "100000\n"), None),
        ((), None),
    ],
)
def test_cpu_limit_of_a_control_group(texts, cores):
    assert cgroups.cpu_limit(*texts) == cores


def tree(root, own, mounts, files):
    """Create a root with proc and sys; ``files``: below /sys/fs/cgroup."""
    everything = {"proc/self/cgroup": own, "proc/self/mountinfo": mounts}
    everything |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in everything.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_the_least_of_nested_groups_counts(tmp_path):
    root = tree(
        tmp_path,
        OWN_V2,
        V2,
        {
            "system.slice/job.scope/cpu.max": "max 100000\n",
            "system.slice/cpu.max": "250000 100000\n",
            "system.slice/job.scope/memory.max": "1000\n",
            "system.slice/job.scope/memory.current": "700\n",
            "system.slice/job.scope/memory.stat": "anon 100\ninactive_file 500\n",
            "system.slice/memory.max": "5000\n",
            "system.slice/memory.current": "4900\n",
            "system.slice/job.scope/pids.max": "max\n",
            "system.slice/pids.max": "100\n",
            "system.slice/pids.current": "97\n",
        },
    )
    assert cgroups.cores(root) == 2.5
    assert cgroups.memory(root) == Room(1000, 100)  # its own limit leaves 800, but the slice's only 100
    assert cgroups.tasks(root) == Room(100, 3)
