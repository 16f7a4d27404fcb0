"""The simulated NCCL exports the functions that the core's table (core/nccl/library.cc) requires."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_simulated_library_exports_all_needed_functions() -> None:
    table = (ROOT / "core/nccl/library.cc").read_text(encoding="utf-8")
    needed = set(re.findall(r'X\(\w+, "(nccl\w+)", true\)', table))
    simulated = (ROOT / "tests/simulated/nccl/nccl_abi.h").read_text(encoding="utf-8")
    assert len(needed) >= 20
    assert needed <= set(re.findall(r"^SIMNCCL_API .*?\b(nccl\w+)\(", simulated, re.MULTILINE))
