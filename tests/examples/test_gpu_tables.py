"""benchmarks/gpu_tables.py: what becomes of figures that a GPU has given."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.examples.benchmark_modules import loaded

ABOUT = {"device": "NVIDIA H200", "date": "2026-11-25", "versions": "torch 2.11, NCCL 2.28.9"}
RATES = {"to the host": 50e9, "to the device": 50e9, "both at once": 40e9, "on the device": 4e12}
MIB = 1 << 20


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    with loaded("gpu_tables", "cases") as module:
        yield module


def case(nbytes: int, seconds: float) -> dict[str, Any]:
    return {"bytes": nbytes, "call": 2e-5, "horovod": [seconds] * 3, "gloo": [10 * seconds] * 3}


def test_a_document_of_all_figures(tables: ModuleType) -> None:
    run = {"part": "allreduce", **ABOUT, "ranks": 2, "bare copies": RATES, "by ipc": True}
    steps = {"alone": [0.1, 0.1], "wrapped": [0.102, 0.102]}
    found = {
        "by IPC": {**run, "seconds": [case(4096, 1e-4), case(256 * MIB, 1e-3)]},
        "by the host": {**run, "by ipc": False, "seconds": [case(256 * MIB, 1e-2)]},
        "added": {
            **ABOUT, "part": "continuation", "ranks": 2, "by nccl": True,
            "seconds": {"horovod": [1.1e-2], "NCCL alone": [1e-2]},
        },
        "a step": {
            **ABOUT, "part": "optimizer", "ranks": 1, "model": "ResNet-50", "seconds": steps, "calls": steps,
            "added, %": [2.0, 2.0],
        },
    }  # fmt: skip
    text = tables.document(found, "probe ok 3\n")
    assert text.startswith("## On a GPU: NVIDIA H200, 2026-11-25\n\ntorch 2.11, NCCL 2.28.9\n\n### by IPC: 2 ranks\n")
    # 256 MiB in a millisecond: 12 passes over 268 MB are 3.2 of 4 TB/s.
    assert "| 256 MiB | 1,000 (1,000 - 1,000) | 10,000 (10,000 - 10,000) | 10.0x | 20 | 268.44 | 671 % | 81 % |" in text
    assert "| 4 KiB | 100 (100 - 100) | 1,000 (1,000 - 1,000) | 10.0x | 20 | 0.04 | 0 % |  |" in text
    assert "| 26.84 | 67 % |  |" in text
    assert "| allreduce | 11,000 (11,000 - 11,000) | 10,000 (10,000 - 10,000) | +1,000 |" in text
    assert "### a step: 1 rank\n\nResNet-50\n" in text
    assert "the wrapper adds +2.00 % (+2.00 to +2.00)" in text
    assert text.endswith("### Checks\n\n```\nprobe ok 3\n```\n")
