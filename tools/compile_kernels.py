"""Compile the CUDA kernels to the PTX file in the repository, with NVRTC 12.1.105 and without a GPU.

    python tools/compile_kernels.py [--nvrtc FOLDER] [--output FILE]

FOLDER is the target of ``pip install --target`` for the package nvidia-cuda-nvrtc-cu12 (scripts/install-nvrtc.sh). The
result is the same on every machine because the compiler's version is pinned and the text contains no paths.
docs/adr/0023-kernels.md explains the choice of compiler and options.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "core/kernels/kernels.cu"
COMMITTED = ROOT / "core/kernels/kernels.ptx"
NVRTC = Path(sys.prefix) / "nvrtc"
LIBRARIES = "nvidia/cuda_nvrtc/lib"
VERSION = (12, 1)
# Oldest architecture that newer NVRTC versions still support. Drivers translate its PTX for all newer GPUs.
OPTIONS = [
    "--gpu-architecture=compute_70",
    "--std=c++17",
    # Disable fused multiply-add, because its results would differ from the CPU's results.
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    f"--include-path={ROOT / 'core'}",
    f"--include-path={ROOT / 'core/kernels/nvrtc'}",
]


class CompileError(Exception):
    """Error raised if NVRTC is missing, has another version, or rejects the source."""


class Nvrtc:
    """Wrapper of the NVRTC library that ``pip install --target`` has installed in `folder`."""

    def __init__(self, folder: Path) -> None:
        libraries = folder / LIBRARIES
        # Load this library first. NVRTC looks for its library of built-in functions only by file name, so it finds the
        # library only if it is already loaded.
        try:
            ctypes.CDLL(str(libraries / "libnvrtc-builtins.so.12.1"), mode=ctypes.RTLD_GLOBAL)
            self._library = ctypes.CDLL(str(libraries / "libnvrtc.so.12"))
        except OSError as error:
            raise CompileError(
                f"NVRTC 12.1 is not in {folder}: {error}; scripts/install-nvrtc.sh installs it"
            ) from None
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        if (major.value, minor.value) != VERSION:
            raise CompileError(f"NVRTC in {folder} is {major.value}.{minor.value}; the kernels are compiled by 12.1")

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CompileError(f"{name}: {self._library.nvrtcGetErrorString(result).decode()}")

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.value.decode()

    def compile(self, source: str, name: str, options: Sequence[str]) -> str:
        """Compile CUDA C++ source to PTX."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        try:
            arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            try:
                self._call("nvrtcCompileProgram", program, len(options), arguments)
            except CompileError as error:
                raise CompileError(f"{error}\n{self._text(program, 'ProgramLog')}") from None
            return self._text(program, "PTX")
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))


def tidy(ptx: str) -> str:
    """Remove trailing whitespace, and unused constants that come from NVRTC's headers."""
    constant = re.compile(r"\.global \.align \d+ \.\w+ (?P<name>\w+)(\[\d+\])?( = .*)?;$")
    lines = [line.rstrip() for line in ptx.splitlines()]
    kept = []
    for line in lines:
        match = constant.match(line)
        if match and len(re.findall(rf"\b{match['name']}\b", ptx)) == 1:
            continue
        kept.append(line)
    return "\n".join(kept).rstrip("\n") + "\n"


def compile_kernels(nvrtc: Path = NVRTC) -> str:
    """Return the PTX of core/kernels/kernels.cu, exactly as it should be committed."""
    return tidy(Nvrtc(nvrtc).compile(SOURCE.read_text(encoding="utf-8"), SOURCE.name, OPTIONS))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile core/kernels/kernels.cu to PTX with NVRTC 12.1.105.")
    parser.add_argument("--nvrtc", type=Path, default=NVRTC, help="where pip has put nvidia-cuda-nvrtc-cu12")
    parser.add_argument("--output", type=Path, default=COMMITTED)
    chosen = parser.parse_args(arguments)
    try:
        ptx = compile_kernels(chosen.nvrtc)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    before = chosen.output.read_text(encoding="utf-8") if chosen.output.exists() else ""
    if ptx != before:
        chosen.output.write_text(ptx, encoding="utf-8")
    print(
        f"{chosen.output}: {ptx.count('.visible .entry')} kernels, {'as before' if ptx == before else 'written anew'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
