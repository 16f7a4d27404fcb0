"""Version detection for NCCL and PyTorch's CUDA, without loading either into this process."""

import ctypes
import importlib.metadata
import mmap
import os
import re
import subprocess
import sys
from typing import Final

from horovod.common.contract import boot
from horovod.common.devices.libraries import LOADED, Library, Missing, folders_of

MINIMUM: Final = 21800
"""Oldest NCCL version that ranks use. It is the first one that can split communicators."""

PACKAGES: Final = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_JAX_PLUGINS: Final = ("jax_cuda13_plugin", "jax_cuda12_plugin")
SECONDS: Final = 20.0
_WORDS: Final = rb"NCCL version (\d+\.\d+\.\d+)"
_LOAD: Final = """
import ctypes, sys
version = ctypes.c_int(0)
try:
    code = ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
    print(version.value, f"ncclGetVersion answers {code}" if code else "")
except (OSError, AttributeError) as error:
    print(0, error)
"""


def code_of(text: str) -> int:
    """Return NCCL's numeric version code, such as 22809 for "2.28.9" and 2708 for "2.7.8". 0 if invalid."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text.strip())
    if match is None:
        return 0
    major, minor, patch = map(int, match.groups())
    return major * (10000 if (major, minor) >= (2, 9) else 1000) + minor * 100 + patch


def text_of(code: int) -> str:
    """Format NCCL's numeric version code as text: "2.28.9" for 22809."""
    unit = 10000 if code >= 10000 else 1000
    return f"{code // unit}.{code % unit // 100}.{code % 100}"


def too_old(code: int) -> str:
    """Return the reason why ranks cannot use this NCCL version, or "" if they can."""
    if code >= MINIMUM:
        return ""
    return f"NCCL {text_of(code)} is too old: {text_of(MINIMUM)} or newer is used"


def installed() -> dict[str, str]:
    """Return the installed NVIDIA packages that contain NCCL, with their versions.

    More than one such package is a mistake, because all of them install the same file.
    """
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def of_nccl(library: Library | Missing) -> int:
    """Return the version code of an NCCL library without loading it or starting a process. 0 if unknown.

    The version comes from the library's Python package, from the file's name, or from the file's contents.
    """
    if isinstance(library, Missing):
        return 0
    if library.source == LOADED:
        return _ask(library.path)
    packages = installed()
    if library.source == "a package of Python" and len(packages) == 1:
        return code_of(next(iter(packages.values()))) or _in_file(library.path)
    # The file name contains the version, as in libnccl.so.2.28.9.
    name = os.path.basename(os.path.realpath(library.path))
    return code_of(name.removeprefix("libnccl.so.")) or _in_file(library.path)


def _ask(path: str) -> int:
    """Return the version of a library that this process has already loaded. Never loads a library."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        version = ctypes.c_int(0)
        return version.value if library.ncclGetVersion(ctypes.byref(version)) == 0 else 0
    except (OSError, AttributeError):
        return 0


def _in_file(path: str) -> int:
    """Find a library's version in its embedded text, such as "NCCL version 2.28.9+cuda13.0"."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            found = re.search(_WORDS, text)
            return code_of(found[1].decode()) if found is not None else 0
    except (OSError, ValueError):  # mapping an empty file raises ValueError
        return 0


def load_elsewhere(path: str) -> tuple[int, str]:
    """Load the library in a separate process. Return its version code, and an error message or ""."""
    try:
        done = subprocess.run(
            [sys.executable, *boot.standalone_arguments("-c", _LOAD, path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, f"it cannot be tried: {error}"
    answer, _, reason = done.stdout.partition(" ")
    if answer.isdecimal():
        return int(answer), reason.strip()
    return 0, f"the process that loaded it ended with {done.returncode}: {done.stderr.strip()[-500:]}"


def built_for_gpus(framework: str) -> bool:
    """Return True if torch, tensorflow, jax or keras is built for NVIDIA GPUs. None of them is imported."""
    if framework == "torch":
        return bool(torch_cuda())
    if framework == "tensorflow":
        text = _first_text("tensorflow", "python/platform/build_info.py")
        return "('is_cuda_build', True)" in text
    if framework == "jax":
        return any(map(folders_of, _JAX_PLUGINS))
    return framework == "keras" and any(map(built_for_gpus, ("torch", "tensorflow", "jax")))


def torch_cuda() -> str:
    """Return the CUDA version for which PyTorch was built, or "" without CUDA. PyTorch is not imported."""
    found = re.search(r"^cuda\b[^=\n]*= *'([^'\n]*)'", _first_text("torch", "version.py"), re.MULTILINE)
    return found[1] if found is not None else ""


def _first_text(package: str, file: str) -> str:
    """Return the contents of a file in an installed package, or "" if it does not exist."""
    for folder in folders_of(package):
        try:
            with open(os.path.join(folder, file), encoding="utf-8") as opened:
                return opened.read()
        except (OSError, UnicodeDecodeError):
            continue
    return ""
