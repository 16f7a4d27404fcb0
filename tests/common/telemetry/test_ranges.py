"""When ranges for NVIDIA's profilers are marked, and the warning where they cannot be."""

from types import SimpleNamespace

import pytest

from horovod.common.contract.settings import Settings
from horovod.common.devices import libraries
from horovod.common.telemetry import telemetry

PROFILED = {"NVTX_INJECTION64_PATH": "/opt/nsys/libToolsInjection64.so"}


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr(libraries, "nvtx", lambda environ: libraries.Library("/x/libnvtx3interop.so.1", "the system"))


def begin(environ, marked, **settings):
    engine = SimpleNamespace(mark_ranges=marked)
    return telemetry.begin_nvtx_ranges(engine, Settings.from_environ(settings), environ)


def test_ranges_are_sent_to_the_profiler(library):
    marked = []
    assert begin(PROFILED, marked.append) == ""
    assert marked == ["/x/libnvtx3interop.so.1"]


def test_missing_profiler_libraries_are_reported(library, monkeypatch):
    def fails(path):
        raise OSError(f"{path}: too short")

    assert "NVTX_INJECTION64_PATH: /x/libnvtx3interop.so.1: too short" in begin(PROFILED, fails)
    monkeypatch.setattr(libraries, "nvtx", lambda environ: libraries.Missing("there is none"))
    assert begin(PROFILED, fails) == "no ranges for the profiler in NVTX_INJECTION64_PATH: there is none"
