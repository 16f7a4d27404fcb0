"""horovodrun --doctor on GPUs: detection on a host, conclusions and output. With a simulated NVML."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from horovod.common.devices.nvml import Gpu, Pair, Survey
from horovod.common.devices.visible import Card, Near, Port
from horovod.runner.doctor import devices
from horovod.runner.doctor.report import FAIL, WARN, DeviceReport, Place
from tests.runner.doctor.test_doctor import problems, reply, with_report
from tests.simulated.nvml import build

GPUS = [Gpu(n, "H200", f"GPU-{n}", f"0000:1{n}:00.0", (9, 0), 141 << 30, "default") for n in range(2)]
SURVEY = Survey(gpus=GPUS, pairs=[Pair(0, 1, "one switch", True)], driver="580.82.07", cuda="13.0")
PORT = Port("mlx5_0", 1, "ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand")
GOOD = DeviceReport(
    survey=SURVEY,
    usable=["0", "1"],
    places=[Place(Near(0, [0, 1, 2, 3]), [Card("mlx5_0", "one switch", True)])] * 2,
    driver="libcuda.so.1",
    jit="/usr/lib/libnvidia-ptxjitcompiler.so.1",
    cache="/root/.nv/ComputeCache",
    torch_cuda="13.0",
    nccl="/site/nvidia/nccl/lib/libnccl.so.2",
    nccl_source="a package of Python",
    nccl_version=22809,
    nccl_packages={"nvidia-nccl-cu13": "2.28.9"},
    direct="nvidia_peermem",
    ports=[PORT],
)
NO_DRIVER = {"survey": Survey(reason="no driver here"), "usable": [], "places": []}


def on_host(name="a", rank=0, slots=2, gpus_each=0, limits=None, shm_free=8 << 30, **changes):
    report = with_report(devices=msgspec.structs.replace(GOOD, **changes), shm_free=shm_free)
    if limits is not None:
        report = msgspec.structs.replace(report, limits=limits)
    return reply(name, rank, slots, report, gpus_each=gpus_each)


def found(*replies):
    return [one for check in devices.CHECKS for one in problems(replies, check)]


ALONE = [
    (
        {**NO_DRIVER, "hardware": {"NVIDIA": ["0000:10:00.0"]}, "nccl": ""},
        "there are GPUs (NVIDIA's at 0000:10:00.0), but no driver here",
    ),
    (
        {**NO_DRIVER, "driver_error": "libcuda.so.1 cannot be loaded: x"},
        "PyTorch is built for CUDA 13.0, but libcuda.so.1 cannot be loaded: x",
    ),
    ({"driver_error": "libcuda.so.1: x"}, "NVIDIA's driver knows 2 GPUs, but libcuda.so.1: x"),
    ({"cuda_error": "cuInit answers X (803)"}, "CUDA does not start: cuInit answers X (803)"),
    ({"ipc_error": "cuIpcX answers Y"}, "processes cannot share memory of GPUs (CUDA IPC): cuIpcX answers Y"),
    (
        {"survey": msgspec.structs.replace(SURVEY, cuda="12.8")},
        "PyTorch is built for CUDA 13.0, and the driver 580.82.07 knows CUDA up to 12.8",
    ),
    (
        {
            "survey": msgspec.structs.replace(
                SURVEY, gpus=[msgspec.structs.replace(gpu, mode="prohibited") for gpu in GPUS]
            )
        },
        "GPUs 0, 1 are in compute mode prohibited: no program may use it",
    ),
    ({"usable": [], "variable": ""}, "CUDA_VISIBLE_DEVICES of workers there is '', which hides all GPUs"),
    ({"usable": ["1"], "variable": "1"}, "2 ranks on 1 GPU: some share one, and take turns on it"),
    ({"nccl": "", "nccl_version": 0}, "there is no libnccl.so.2 for the GPUs"),
    ({"nccl_error": "x cannot be loaded: y"}, "x cannot be loaded: y"),
    ({"nccl_version": 21605}, "/site/nvidia/nccl/lib/libnccl.so.2: NCCL 2.16.5 is too old: 2.18.0 or newer is used"),
    (
        {"nccl_packages": {"nvidia-nccl-cu13": "2.28.9", "nvidia-nccl-cu12": "2.21.5"}},
        "nvidia-nccl-cu12 2.21.5 and nvidia-nccl-cu13 2.28.9 are installed, which write the same file; it is now NCCL "
        "2.28.9",
    ),
    ({"jit": ""}, "there is no libnvidia-ptxjitcompiler.so.1, with which the driver compiles kernels for its GPU"),
    ({"cache_error": "/root cannot be written"}, "what the driver compiles is not kept: /root cannot be written"),
    (
        {"survey": msgspec.structs.replace(SURVEY, pairs=[Pair(0, 1, "host bridge", refused="not supported")])},
        "1 of 1 pairs of GPUs cannot read each other's memory, as 0 and 1: not supported",
    ),
    ({"shm_free": 200 << 20}, "/dev/shm has 200 MiB left, in which NCCL and CUDA keep buffers for ranks of one host"),
]


@pytest.mark.parametrize(("changes", "text"), ALONE)
def test_findings_of_one_host(changes, text):
    assert found(on_host(**changes)) == [(WARN, "a", text)]


def test_findings_of_the_job():
    text = "--gpus-per-worker 2 for 2 workers needs 4 GPUs on this host, where only 2 GPUs can be used (as NVIDIA's "
    assert found(on_host(gpus_each=2)) == [(FAIL, "a", text + "driver says)")]
    one = dataclasses.replace(on_host(gpus_each=1), visible_devices="1")
    assert found(one)[0][2].endswith("where only 1 GPU can be used (CUDA_VISIBLE_DEVICES there is '1')")
    assert found(dataclasses.replace(one, visible_devices="1,0")) == []
    exclusive = [msgspec.structs.replace(gpu, mode="exclusive process") for gpu in GPUS]
    survey = msgspec.structs.replace(SURVEY, gpus=exclusive)
    assert found(on_host(survey=survey)) == []
    assert [text for _, _, text in found(on_host(slots=3, survey=survey))] == [
        "GPUs 0, 1: compute mode exclusive process, so ranks cannot share a GPU",
        "3 ranks on 2 GPUs: some share one, and take turns on it",
    ]


def test_findings_of_several_hosts():
    older = msgspec.structs.replace(SURVEY, driver="550.1", gpus=[msgspec.structs.replace(GPUS[0], name="A100")])
    other = on_host("b", 1, slots=1, survey=older, usable=["0"], nccl_version=22105)
    assert [text for _, _, text in found(on_host(), other)] == [
        "GPUs differ: 1 on b; 2 on a",
        "models differ: A100 on b; H200 on a",
        "drivers differ: 550.1 on b; 580.82.07 on a",
        "versions differ: 2.21.5 on b; 2.28.9 on a",
    ]
    assert found(on_host(slots=1, ipc_error="x")) == []
    # InfiniBand matters between hosts only.
    indirect = {"direct": "", "limits": {"memlock": (8 << 20, 8 << 20)}}
    assert found(on_host(**indirect)) == []
    assert found(on_host(**indirect), on_host("b", 1)) == [
        (
            WARN,
            "a",
            "mlx5_0 cannot reach the memory of GPUs (GPUDirect RDMA): there is neither nvidia_peermem nor DMA-BUF",
        ),
        (WARN, "a", "a process may lock 8192 KiB of memory, and mlx5_0 needs what it sends from locked"),
    ]


def test_the_doctor_examines_a_host(tmp_path, monkeypatch):
    """It reads a file tree like the one below /; everything else is this machine's."""
    for path, text in {
        "sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:3b:00.0/class": "0x030200\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07\n",
        "proc/sys/kernel/osrelease": "5.15.0-91-generic\n",
        "mps/control": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    environ = {
        "HOME": str(tmp_path / "home"),
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps"),
        "HOROVOD_NCCL_LIBRARY": "/no/libnccl.so.2",
        "HOROVOD_CUDA_LIBRARY": "/no/libcuda.so.1",
    }
    report = devices.examine(environ, str(tmp_path))
    assert report.hardware == {"NVIDIA": ["0000:3b:00.0"]}
    assert (report.direct, report.mps) == ("DMA-BUF", str(tmp_path / "mps"))
    assert (report.cache, report.cache_error) == (str(tmp_path / "home/.nv/ComputeCache"), "")
    assert report.nccl_error == "HOROVOD_NCCL_LIBRARY is '/no/libnccl.so.2', and there is no such file"
    assert report.driver_error.startswith("/no/libcuda.so.1 cannot be loaded: ")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=DeviceReport) == report
    (tmp_path / "proc/sys/kernel/osrelease").write_text("5.10.0\n")
    report = devices.examine({"CUDA_CACHE_DISABLE": "1"}, str(tmp_path))
    assert (report.direct, report.cache_error) == ("", "CUDA_CACHE_DISABLE is set")
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    report = devices.examine({}, str(tmp_path))
    assert (report.direct, report.cache_error) == ("nvidia_peermem", "there is no HOME and no CUDA_CACHE_PATH")


def test_the_command_shows_gpus(tmp_path):
    """The launcher's own CUDA_VISIBLE_DEVICES is not passed to workers, but limits the GPUs that they get."""
    build(tmp_path)
    source = Path(__file__).parents[2] / "common/devices/driver.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True, timeout=60)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "1"}
    environ |= {"FAKE_MEMORY": str(tmp_path / "memory"), "FAKE_OPEN": "1"}
    environ["SIMNVML"] = "name=H200,bus=3b;name=H200,bus=5d,node=1"
    command = [sys.executable, "-m", "horovod.runner.launch", "--doctor", "-np", "3", "--gpus-per-worker", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)
    assert (done.returncode, done.stderr) == (1, "")
    out = done.stdout
    assert re.search(r"^GPU +2 \(H200\)$", out, re.MULTILINE)
    assert re.search(r"^driver +580\.82\.07, CUDA 13\.0", out, re.MULTILINE)
    row = r"^localhost +1 +H200 +141 GiB +9\.0 +default +0000:5d:00\.0 +GPU-0000.*1 +CPUs 4-7$"
    assert re.search(row, out, re.MULTILINE), out
    assert re.search(r"^localhost +between NUMA nodes; no peer access: the I/O hub does .* +0-1$", out, re.MULTILINE)
    assert "(CUDA IPC): cuIpcOpenMemHandle_v2 answers error 1\n     -> their data goes through the host's" in out
    assert (
        "FAIL GPU: localhost: --gpus-per-worker 1 for 3 workers needs 3 GPUs on this host, where only 1 GPU can be "
        "used (CUDA_VISIBLE_DEVICES there is '1')\n     -> start fewer workers there, or let them share GPUs without "
    ) in out
