"""Compare the table of NCCL's functions (core/nccl/library.cc) and the simulated library with a real libnccl.

The wheel of NCCL can be loaded without a GPU or driver. It is large, so nothing here downloads it: set
HOROVOD_NCCL_LIBRARY to the path of a libnccl.so.2, or install nvidia-nccl-cu13.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OLDEST = 21800
# Loads the library, and prints its names, its version, and the error of a two-rank communicator without a
# GPU.
PROBE = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
version = ctypes.c_int()
result = library.ncclGetVersion(ctypes.byref(version))
library.ncclGetErrorString.restype = ctypes.c_char_p
texts = [library.ncclGetErrorString(i).decode() for i in range(8)]
there = [name for name in sys.argv[2:] if hasattr(library, name)]
print(json.dumps({"result": result, "version": version.value, "texts": texts, "there": there}))
"""


def real_library() -> Path:
    """Path of the real libnccl.so.2; skips the test if there is none."""
    named = os.environ.get("HOROVOD_NCCL_LIBRARY")
    if named and Path(named).is_file():
        return Path(named)
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "lib" / "libnccl.so.2"
        if path.is_file():
            return path
    pytest.skip("the wheel of NCCL is not installed")


def table() -> dict[str, bool]:
    """Return NCCL's names in the core's table, and whether each is required."""
    text = (ROOT / "core/nccl/library.cc").read_text(encoding="utf-8")
    return {name: needed == "true" for name, needed in re.findall(r'X\(\w+, "(nccl\w+)", (true|false)\)', text)}


def simulated() -> set[str]:
    """Return the names that the simulated library exports."""
    text = (ROOT / "tests/simulated/nccl/nccl_abi.h").read_text(encoding="utf-8")
    return set(re.findall(r"^SIMNCCL_API .*?\b(nccl\w+)\(", text, re.MULTILINE))


def test_the_simulated_library_exports_all_that_the_table_needs() -> None:
    needed = {name for name, required in table().items() if required}
    assert len(needed) >= 20
    assert needed <= simulated()


def test_a_real_library_has_all_names_and_tells_its_version_without_a_gpu() -> None:
    library = real_library()
    names = sorted(set(table()) | simulated())
    done = subprocess.run(
        [sys.executable, "-c", PROBE, library, *names], capture_output=True, text=True, timeout=120, check=True
    )
    answer = json.loads(done.stdout)
    assert answer["result"] == 0
    assert answer["version"] >= OLDEST
    assert answer["texts"][0] == "no error"
    assert answer["texts"][7] == "NCCL operation in progress"
    missing = {name for name, required in table().items() if required} - set(answer["there"])
    assert not missing, f"{library} has no {missing}"
    if answer["version"] >= 22809:
        assert not set(names) - set(answer["there"])
