"""NVML's answers, from a simulated library, and behaviour if it is missing or refuses."""

import os
import subprocess
import sys

import pytest

from horovod.common.devices import nvml
from horovod.common.devices.nvml import Survey
from tests.simulated.nvml import build


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return str(build(tmp_path_factory.mktemp("nvml")))


def test_gpus_and_their_links(library, monkeypatch):
    monkeypatch.setenv("SIMNVML", "name=H200,bus=3b,processes=2;mode=3;node=1,mig=2,uuid=GPU-abc")
    found = nvml.survey(library, pairs=True)
    assert (found.driver, found.cuda, found.reason) == ("580.82.07", "13.0", "")
    first, second, third = found.gpus
    assert (first.name, first.bus, first.capability, first.memory) == ("H200", "0000:3b:00.0", (9, 0), 141 << 30)
    assert (first.mode, first.mig, first.slices, first.processes) == ("default", False, [], [1000, 1001])
    assert first.cpus == [0, 1, 2, 3]
    assert (second.uuid, second.mode, second.index) == (
        "GPU-00000000-0000-0000-0000-000000000001",
        "exclusive process",
        1,
    )
    assert (third.uuid, third.mig, third.slices) == ("GPU-abc", True, ["MIG-GPU-abc-0", "MIG-GPU-abc-1"])
    assert third.cpus == [4, 5, 6, 7]
    near, far, _ = found.pairs
    assert (near.first, near.second, near.distance, near.nvlink, near.refused) == (0, 1, "one switch", True, "")
    assert (far.second, far.distance, far.nvlink, far.refused) == (
        2,
        "between NUMA nodes",
        False,
        "the I/O hub does not support it",
    )


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"SIMNVML": ""}, "the driver is there and knows no GPU"),
        (
            {"SIMNVML_INIT": "9"},
            "nvmlInit_v2: Driver Not Loaded (error 9); the kernel module of NVIDIA's driver is not",
        ),
        ({"SIMNVML_INIT": "777"}, "nvmlInit_v2: Unknown Error (error 777)"),
        ({"SIMNVML_REFUSE": "nvmlDeviceGetCount_v2"}, "nvmlDeviceGetCount_v2: Not Supported (error 3)"),
    ],
)
def test_missing_gpus_are_a_result_with_a_reason(library, monkeypatch, environ, reason):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = nvml.survey(library)
    assert found.gpus == []
    assert found.reason.startswith(reason)


def test_missing_or_invalid_library(tmp_path):
    (tmp_path / "libnothing.so.1").write_text("no library")
    (tmp_path / "libempty.c").write_text("int x;")
    empty = tmp_path / "libempty.so.1"
    subprocess.run(["gcc", "-shared", "-o", empty, tmp_path / "libempty.c"], check=True, timeout=60)
    missing, broken = (nvml.survey(str(tmp_path / name)) for name in ("libmissing.so.1", "libnothing.so.1"))
    assert missing == Survey(
        reason=f"{tmp_path}/libmissing.so.1: there is no NVIDIA driver on this host, or it is not in this container"
    )
    assert f"{tmp_path}/libnothing.so.1: cannot be loaded: " in broken.reason
    old = nvml.survey(str(empty))
    assert old == Survey(reason="nvmlInit_v2: this version of the library does not have it")


def test_nvml_is_queried_without_cuda_and_forks_still_work(library):
    """Run in a separate process; NVML answers in the forked child, too."""
    code = (
        "import os, sys\n"
        "from horovod.common.devices import nvml\n"
        f"print(len(nvml.survey({library!r}).gpus), 'libcuda' in open('/proc/self/maps').read(), flush=True)\n"
        "pid = os.fork()\n"
        "pid and os.waitpid(pid, 0)\n"
        f"print(len(nvml.survey({library!r}).gpus), flush=True)\n"
    )
    environ = {**os.environ, "SIMNVML": "uuid=GPU-1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["1", "False", "1", "1"], "")
