"""The doctor on containers: conclusions from reports, and from file trees as runtimes create them."""

import os
import subprocess
import sys

import msgspec
import pytest

from horovod.runner.doctor import container
from horovod.runner.doctor.report import WARN, ContainerReport, DeviceReport
from tests.common.contract.test_kernel import V2, tree
from tests.runner.doctor.test_devices import GPUS, SURVEY
from tests.runner.doctor.test_doctor import problems, reply, with_report
from tests.runner.launching import run_job

MIB = 1 << 20


def inside(shm_free=8 << 30, memory_available=60 << 30, devices=None, **changes):
    report = with_report(shm_free=shm_free, memory_available=memory_available, container=ContainerReport(**changes))
    return report if devices is None else msgspec.structs.replace(report, devices=devices)


def found(*reports, slots=2):
    replies = [reply(name, rank, slots, report) for rank, (name, report) in enumerate(zip("ab", reports, strict=False))]
    return [one for check in container.CHECKS for one in problems(replies, check)]


SMALL = "/dev/shm has 64 MiB left of 64, for "


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (inside(64 * MIB, shm=64 * MIB), SMALL + "2 ranks"),  # Docker's default
        (inside(129 * MIB, shm=129 * MIB), None),
        (inside(-1), None),  # a tmpfs without a limit
        (inside(-1, shm_error="it is not there"), "programs can put nothing into /dev/shm: it is not there"),
        (
            inside(8 << 30, shm_error="Read-only file system"),
            "programs can put nothing into /dev/shm: Read-only file system",
        ),
        (
            inside(memory_available=500 * MIB, memory_limit=1 << 30),
            "500 MiB are free of the 1024 MiB that the container may take, for 2 ranks",
        ),
        (inside(memory_available=900 * MIB, memory_limit=1 << 30), None),
        (inside(memory_available=500 * MIB), None),  # not a container: covered by the check of the machine's memory
        (
            inside(tasks_limit=300, tasks_free=250),
            "250 processes and threads are left of the container's 300, for 2 ranks; frameworks start many",
        ),
        (inside(tasks_limit=300, tasks_free=256), None),
    ],
)
def test_findings_of_one_container(report, text):
    assert found(report) == ([] if text is None else [(WARN, "a", text)])


SPACES = {"ipc": "ipc:[1]", "pid": "pid:[1]", "mnt": "mnt:[1]"}
OTHERS = {"ipc": "ipc:[2]", "pid": "pid:[2]", "mnt": "mnt:[2]"}


@pytest.mark.parametrize(
    ("gpus", "spaces", "spoken_of"),
    [
        (GPUS, OTHERS, True),
        (GPUS, {**SPACES, "mnt": "mnt:[2]", "pid": "pid:[2]"}, True),
        (GPUS, {**SPACES, "mnt": "mnt:[2]"}, False),  # --ipc=host --pid=host
        ([], OTHERS, False),
    ],
)
def test_cuda_ipc_is_reported_only_with_gpus(gpus, spaces, spoken_of):
    devices = DeviceReport(msgspec.structs.replace(SURVEY, gpus=gpus))
    reports = [inside(machine="m", spaces=each, devices=devices) for each in (SPACES, spaces)]
    replies = [reply("a", 0, 1, reports[0]), reply("b", 1, 1, reports[1])]
    (finding,) = container.neighbours(replies)
    assert ("--ipc=host" in finding.advice) is spoken_of


def test_the_doctor_examines_a_tree(tmp_path):
    root = tree(
        tmp_path,
        "0::/\n",
        V2,
        {"memory.max": "1000\n", "memory.current": "400\n", "pids.max": "50\n", "pids.current": "20\n"},
    )
    for name in ("proc/self/ns", "proc/sys/kernel/random", "dev/shm", "run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("0b-1d\n")
    os.symlink("ipc:[7]", tmp_path / "proc/self/ns/ipc")
    (tmp_path / "run/.containerenv").touch()
    report = container.examine({}, root)
    assert (report.kind, report.memory_limit, report.tasks_limit, report.tasks_free) == ("podman", 1000, 50, 30)
    assert (report.machine, report.spaces, report.shm_error) == ("0b-1d", {"ipc": "ipc:[7]"}, "")
    assert report.shm > 0
    assert os.listdir(tmp_path / "dev/shm") == []


@pytest.mark.parametrize(
    ("environ", "sign", "kind"),
    [
        ({}, "", ""),
        ({}, ".dockerenv", "docker"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ".dockerenv", "kubernetes"),
        ({"APPTAINER_CONTAINER": "/a.sif"}, "", "apptainer"),
        ({"container": "lxc"}, "", "lxc"),
    ],
)
def test_detection_of_the_container(environ, sign, kind, tmp_path):
    if sign:
        (tmp_path / sign).touch()
    report = container.examine(environ, str(tmp_path))
    assert (report.kind, report.shm, report.shm_error) == (kind, -1, "it is not there")
    assert (report.memory_limit, report.tasks_limit, report.machine, report.spaces) == (-1, -1, "", {})


def mounted(options, then):
    """Run Python in a new mount namespace, with a tmpfs with these options at /dev/shm."""
    script = f'mount -t tmpfs -o {options} none /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, *then], capture_output=True, text=True, timeout=180
    )
    if done.returncode and ("unshare: " in done.stderr or "mount: " in done.stderr):
        pytest.skip(f"a file system cannot be mounted: {done.stderr.strip()}")
    return done


LOOK = """
import msgspec
from horovod.runner.doctor import container, probe
print(msgspec.json.encode([container.examine(), probe._free("/dev/shm")]).decode())
"""


@pytest.mark.parametrize(
    ("options", "size", "error"),
    [("size=64k", 65536, ""), ("size=1m,ro", MIB, "Read-only file system"), ("size=0", -1, "")],
)
def test_a_real_file_system(options, size, error):
    done = mounted(options, ["-c", LOOK])
    report, free = msgspec.json.decode(done.stdout, type=tuple[ContainerReport, int])
    assert (report.shm, report.shm_error, free) == (size, error, size)


@pytest.mark.heavy
def test_no_memory_files():
    """A sandbox that forbids memfd_create: both the launcher and the doctor report it."""
    program = os.path.join(os.path.dirname(__file__), "..", "without_memfd.py")
    for arguments in (["-np", "2", "true"], ["--doctor"]):
        done = subprocess.run(
            [sys.executable, program, sys.executable, "-m", "horovod.runner", *arguments],
            capture_output=True,
            text=True,
            timeout=180,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 1
        assert "memfd_create is refused (Operation not permitted), without which no job can start" in output
        assert "Traceback" not in output
    inner = run_job(["-np", "2", sys.executable, program, sys.executable, "-c", "import horovod.numpy as h; h.init()"])
    assert inner.code == 1
    assert "could not join: memfd_create is refused (Operation not permitted)" in inner.err
