"""Whether CUDA starts, and whether processes may share GPU memory; with a minimal driver whose GPU is a file."""

import subprocess
import time
from pathlib import Path

import pytest

from horovod.common.devices.cuda_check import Result, try_cuda


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    command = ["gcc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", Path(__file__).with_name("driver.c")]
    subprocess.run(command, check=True, timeout=60)
    return str(folder / "libcuda.so.1")


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, Result()),
        ({"FAKE_INIT": "803"}, Result(cuda="cuInit answers CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)")),
        ({"FAKE_INIT": "12345"}, Result(cuda="cuInit answers error 12345")),
        ({"FAKE_DIES": "1"}, Result(cuda="the process that tried it ended with -6")),
        ({"FAKE_EXPORT": "801"}, Result(ipc="cuIpcGetMemHandle answers error 801")),
        ({"FAKE_OPEN": "1"}, Result(ipc="cuIpcOpenMemHandle_v2 answers error 1")),
        ({"FAKE_OTHER": "other"}, Result(ipc="the memory of another process was opened, and other bytes were read")),
    ],
)
def test_libraries_are_tried_in_a_process(driver, tmp_path, monkeypatch, environ, found):
    monkeypatch.setenv("FAKE_MEMORY", str(tmp_path / "memory"))
    for name, value in environ.items():
        monkeypatch.setenv(name, str(tmp_path / value) if name == "FAKE_OTHER" else value)
    assert try_cuda(driver) == found
    assert driver not in Path("/proc/self/maps").read_text()
    assert [each.name for each in tmp_path.iterdir() if each.name == "memory"] == ["memory"] * (
        "FAKE_EXPORT" in environ
    )


def test_hanging_libraries_are_given_up(driver, monkeypatch):
    monkeypatch.setenv("FAKE_HANGS", "1")
    begin = time.monotonic()
    assert try_cuda(driver, 1.0) == Result(cuda="nothing comes of it: it takes longer than it should")
    assert time.monotonic() - begin < 30


def test_no_driver():
    found = try_cuda("/no/libcuda.so.1")
    assert found.cuda.startswith("/no/libcuda.so.1 cannot be loaded: ")
