"""core/kernels/kernels.ptx matches its source, and assembles for all GPUs without contracted arithmetic."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import compile_kernels

ROOT = Path(__file__).resolve().parents[2]
PTXAS = Path(sys.prefix) / "ptxas"
ASSEMBLERS = {"12.1": PTXAS / "nvidia/cuda_nvcc/bin/ptxas", "13.2": PTXAS / "nvidia/cu13/bin/ptxas"}
DISASSEMBLER = PTXAS / "nvidia/cu13/bin/nvdisasm"


@pytest.mark.heavy
def test_committed_ptx_matches_the_source():
    if not (compile_kernels.NVRTC / compile_kernels.LIBRARIES).is_dir():
        pytest.skip("NVRTC is not installed (scripts/install-nvrtc.sh)")
    done = subprocess.run(
        [sys.executable, "-c", "from tools import compile_kernels as c; print(c.compile_kernels(), end='')"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Not ==, because pytest would compute a diff of 50,000 lines.
    if done.stdout != compile_kernels.COMMITTED.read_text():
        pytest.fail("core/kernels/kernels.ptx is not what kernels.cu gives: make kernels")


def functions(listing: str) -> dict[str, str]:
    """Return the machine code of each kernel, by name."""
    parts = re.split(r"^\s*\.section\s+\.text\.(\w+),.*$", listing, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("version", "gpu"), [("12.1", 70), ("13.2", 75), ("13.2", 90), ("13.2", 100), ("13.2", 120)], ids=lambda x: str(x)
)
def test_kernels_assemble_without_spills_and_without_contraction(tmp_path, version, gpu):
    if not (PTXAS / "complete").exists():
        pytest.skip(f"ptxas {version} is not installed (scripts/install-ptxas.sh)")
    code = tmp_path / "kernels.cubin"
    command = [ASSEMBLERS[version], "-v", f"-arch=sm_{gpu}", compile_kernels.COMMITTED, "-o", code]
    for program in (ASSEMBLERS[version], DISASSEMBLER):
        program.chmod(0o755)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    if gpu < 75:
        return  # CUDA 13 has no disassembler for it; and one kernel spills there, four words
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert set(spills) == {("0", "0", "0")}
    listing = subprocess.run([DISASSEMBLER, code], capture_output=True, text=True, timeout=300, check=True).stdout
    kernels = functions(listing)
    assert len(kernels) == 38
    for name, text in kernels.items():
        assert "LDG" in text or "LD." in text, name
        # Integers are scaled in double, and division consists of such instructions; its result is still
        # exact.
        if "float" in name:
            assert not re.search(r"\b(FFMA|DFMA)", text), name
