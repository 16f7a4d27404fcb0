"""Limits of control groups, read from file trees as kernels show them: version 1, version 2, and in containers."""

import errno
import os
import socket
import subprocess
import sys

import pytest

from horovod.common.contract import kernel
from horovod.common.contract.kernel import Capacity, Groups

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
def test_paths_of_control_groups(controller, own, mounts, expected):
    found = kernel.groups(controller, own, mounts)
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
    assert kernel.cpu_limit(*texts) == cores


def tree(root, own, mounts, files):
    """Create a root with proc and sys; ``files``: below /sys/fs/cgroup."""
    tree = {"proc/self/cgroup": own, "proc/self/mountinfo": mounts}
    tree |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_the_lowest_limit_of_nested_groups_applies(tmp_path):
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
    assert kernel.cores(root) == 2.5
    assert kernel.memory(root) == Capacity(1000, 100)  # its own limit leaves 800, but the slice's only 100
    assert kernel.tasks(root) == Capacity(100, 3)


PROGRAM = """
import os, resource, sys
from horovod.common.contract.kernel import make_room
soft, hard, count, *at_least = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    make_room(count, *at_least)
except ValueError as error:
    sys.exit(str(error))
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(min([count, *at_least]))]
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def run(*numbers):
    command = [sys.executable, "-c", PROGRAM, *map(str, numbers)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("numbers", "limits"),
    [
        ((64, 500, 300), range(301, 400)),  # raised only as far as needed
        ((400, 500, 300), [400]),  # already high enough
        ((64, 200, 300, 100), [200]),  # fewer may suffice
    ],
)
def test_limits_are_raised_as_far_as_needed_and_possible(numbers, limits):
    done = run(*numbers)
    assert done.returncode == 0, done.stderr
    soft, hard = map(int, done.stdout.split())
    assert soft in limits
    assert hard == numbers[1]


@pytest.mark.parametrize(("numbers", "needed"), [((64, 100, 300), "3"), ((64, 100, 300, 150), "1")])
def test_too_low_hard_limits_are_named(numbers, needed):
    done = run(*numbers)
    assert done.returncode == 1
    assert done.stderr.startswith(f"this process may have 100 files open, but in this job it needs {needed}")


MEET = """
import resource, sys
from horovod.common.key_exchange.methods import Group
from horovod.common.key_exchange.meeting import meet
from horovod.common.launchers import Place
from horovod.common.contract.worker_env import make_key
resource.setrlimit(resource.RLIMIT_NOFILE, (128, int(sys.argv[1])))
place = Place("a launcher", 0, 300, local_rank=0, local_size=300, job=f"room {sys.argv[2]}")
try:
    meeting = meet(Group(place, (), None), make_key, 10)
except ValueError as error:
    sys.exit(str(error))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
meeting.formed()
meeting.server.close()
"""


def test_limits_of_rank_0_are_raised_for_its_store():
    def run(hard):
        command = [sys.executable, "-c", MEET, str(hard), str(os.getpid())]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = run(2000)
    assert done.returncode == 0, done.stderr
    assert 2 * 300 * 8 / 7 < int(done.stdout) < 1000
    assert run(500).stdout == "500\n"
    assert run(200).stderr.startswith("this process may have 200 files open, but in this job it needs 4")


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EPERM, r"memfd_create is refused \(Operation not permitted\).* seccomp"),
        (errno.ENOSYS, r"memfd_create is refused"),
        (errno.EMFILE, r"no file can be made in memory: Too many open files \(of this process: ulimit -n"),
        (errno.ENOMEM, r"no file can be made in memory: Cannot allocate memory"),
    ],
)
def test_errors_name_the_obstacle(monkeypatch, number, says):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(kernel.MemoryFileError, match=says) as raised:
        kernel.create_memory_file("x")
    assert raised.value.errno == number


def test_the_kernel_reports_the_peer():
    local, peer = socket.socketpair(socket.AF_UNIX)
    with local, peer:
        assert kernel.peer_credentials(local) == (os.getpid(), os.geteuid(), os.getegid())
        assert kernel.peer_user(peer) == os.geteuid()
