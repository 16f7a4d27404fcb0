"""Find the GPU libraries (CUDA driver, NCCL and NVTX) and the versions of NCCL and PyTorch's CUDA.

The search happens at run time, so that one wheel works with and without GPUs. This module loads no library except
CUDA's driver, in ``driver_error``, and does not initialize the driver.

NCCL needs special care. Frameworks that are imported later also use the first libnccl.so.2 that the process loads, and
an older version breaks them ("undefined symbol: ncclCommX"). So ranks first only search for NCCL. They load it at their
first GPU operation, when the frameworks have been loaded.
"""

import ctypes
import importlib.metadata
import importlib.util
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from horovod.common.contract import boot

DRIVER: Final = "libcuda.so.1"  # libcuda.so without a version could be a stub from the CUDA toolkit
NCCL: Final = "libnccl.so.2"

NCCL_FILES: Final = ("~/.nccl.conf", "/etc/nccl.conf")
NCCL_VARIABLE: Final = "HOROVOD_NCCL_LIBRARY"
DRIVER_VARIABLE: Final = "HOROVOD_CUDA_LIBRARY"

# Paths relative to NVIDIA's Python package `nvidia`. The NCCL packages for CUDA 12 and 13 use the same path.
_NCCL_WHEEL: Final = "nccl/lib/libnccl.so.2"
_NVTX_WHEELS: Final = ("cu13/lib/libnvtx3interop.so.1", "nvtx/lib/libnvToolsExt.so.1")
_SYSTEM: Final = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/lib64")
CACHE = "/etc/ld.so.cache"
JIT: Final = "libnvidia-ptxjitcompiler.so.1"


LOADED: Final = "loaded already"


class Library(NamedTuple):
    """Library found by the search, with its path and how it was found."""

    path: str
    source: str
    """How it was found.

    A variable's name, "loaded already", "a package of Python", "beside Python" (as in conda's environments) or
    "the system".
    """


class Missing(NamedTuple):
    """Result of an unsuccessful search. The message lists the searched locations."""

    reason: str


def driver(environ: Mapping[str, str]) -> str:
    """Return the CUDA driver library's name or path, as an argument for dlopen."""
    return environ.get(DRIVER_VARIABLE, "").strip() or DRIVER


def driver_error(environ: Mapping[str, str]) -> str:
    """Return the reason why the CUDA driver cannot be loaded, or "" if it can.

    The driver stays loaded but uninitialized (no cuInit), so the process can still fork.
    """
    name = driver(environ)
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return f"{name} cannot be loaded: {error}"
    return ""


class Search(NamedTuple):
    """Locations in which the engine looks for NCCL when it is first used, after frameworks have been imported."""

    chosen: str
    """Library that the user has chosen. If not empty, no other library is tried."""
    candidates: list[str]
    """Libraries to try if none is loaded yet: first paths, then names for the loader."""


def nccl_search(environ: Mapping[str, str]) -> Search:
    """Return the locations in which the engine looks for NCCL, in the search order of ``nccl``.

    The result is cached, because a search takes 3 ms and would delay elastic ranks that join an epoch.
    """
    key = (environ.get("LD_LIBRARY_PATH", ""), *sys.path)
    if key not in _searched:
        _searched[key] = [library.path for library in _nccls(environ) if library.source != LOADED]
    return Search(environ.get(NCCL_VARIABLE, "").strip(), [*_searched[key], NCCL])


_searched: dict[tuple[str, ...], list[str]] = {}


def nccl(environ: Mapping[str, str]) -> Library | Missing:
    """Return the NCCL library that a rank with this environment uses, without loading it.

    The search order is the path in the environment variable, libraries already in this process, Python's packages, and
    the system's libraries.
    """
    given = environ.get(NCCL_VARIABLE, "").strip()
    if given:
        path = given if os.path.isfile(given) else "" if "/" in given else of_system(given, environ)
        if path:
            return Library(path, NCCL_VARIABLE)
        return Missing(f"{NCCL_VARIABLE} is {given!r}, and there is no such file")
    for library in _nccls(environ):
        return library
    return Missing(
        f"there is no {NCCL}: neither in this process, nor in Python's packages (nvidia-nccl-cu13, nvidia-nccl-cu12), "
        "nor on the system"
    )


def _nccls(environ: Mapping[str, str]) -> Iterator[Library]:
    if path := loaded(NCCL):
        yield Library(path, LOADED)
    for path in in_packages(_NCCL_WHEEL):
        yield Library(path, "a package of Python")
    if path := _file(os.path.join(sys.prefix, "lib", NCCL)):
        yield Library(path, "beside Python")
    if path := of_system(NCCL, environ):
        yield Library(path, "the system")


def have_nccl_warn(environ: MutableMapping[str, str], files: Sequence[str] = NCCL_FILES) -> None:
    """Make NCCL print error details (NCCL_DEBUG=WARN), unless the user has set NCCL_DEBUG.

    The user can set NCCL_DEBUG in the environment or in NCCL's configuration files. NCCL reads both when it is first
    used.
    """
    if "NCCL_DEBUG" in environ:
        return
    for name in files:
        try:
            text = Path(name).expanduser().read_text(errors="replace")
        except (OSError, RuntimeError):
            continue
        if re.search(r"^\s*NCCL_DEBUG\s*=", text, re.MULTILINE):
            return
    environ["NCCL_DEBUG"] = "WARN"


def nvtx(environ: Mapping[str, str]) -> Library | Missing:
    """Find the NVTX library, which marks ranges for NVIDIA's profilers."""
    for wheel in _NVTX_WHEELS:
        for path in in_packages(wheel):
            return Library(path, "a package of Python")
    for wheel in _NVTX_WHEELS:
        if path := of_system(wheel.rsplit("/", 1)[1], environ):
            return Library(path, "the system")
    return Missing("there is neither libnvtx3interop.so.1 nor libnvToolsExt.so.1")


def loaded(name: str) -> str:
    """Return the path of a library that this process has loaded, or "" if it is not loaded."""
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return _origin(library) or name
    except OSError:
        return ""


class _LinkMap(ctypes.Structure):
    """The first fields of glibc's struct link_map."""

    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]


def _origin(library: ctypes.CDLL) -> str:
    """Return the path of the file from which a library was loaded."""
    try:
        dlinfo = ctypes.CDLL(None).dlinfo
    except AttributeError:
        return ""
    entry = ctypes.POINTER(_LinkMap)()
    request = ctypes.c_int(2)  # RTLD_DI_LINKMAP
    if dlinfo(ctypes.c_void_p(library._handle), request, ctypes.byref(entry)) != 0 or not entry:
        return ""
    return os.fsdecode(entry.contents.name or b"")


def in_packages(below: str) -> Iterator[str]:
    """Yield the files with this relative path in the directories of the package `nvidia`."""
    for folder in folders_of("nvidia"):
        if path := _file(os.path.join(folder, below)):
            yield path


def folders_of(package: str) -> list[str]:
    """Return the directories of a package without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec is not None else []


def of_system(name: str, environ: Mapping[str, str], cache: str = "") -> str:
    """Look up a library's path in ldconfig's cache file. Return "" if it is not listed."""
    for folder in environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and (path := _file(os.path.join(folder, name))):
            return path
    try:
        with open(cache or CACHE, "rb") as file:
            # Names and paths are zero-terminated in all versions of ldconfig's cache file.
            paths = re.findall(rb"/[^\0]*/" + re.escape(name.encode()) + rb"(?=\0)", file.read())
    except OSError:
        paths = []
    candidates = [*map(os.fsdecode, paths), *(os.path.join(folder, name) for folder in _SYSTEM)]
    return next(filter(None, map(_file, candidates)), "")


def _file(path: str) -> str:
    return path if Path(path).is_file() else ""


MINIMUM: Final = 21800
"""Oldest NCCL version that ranks use. It is the first one that can split communicators."""

PACKAGES: Final = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_JAX_PLUGINS: Final = ("jax_cuda13_plugin", "jax_cuda12_plugin")
SECONDS: Final = 20.0
_VERSION_TEXT: Final = rb"NCCL version (\d+\.\d+\.\d+)"
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
    """Return NCCL's numeric version code, such as 22809 for "2.28.9" and 2708 for "2.7.8", or 0 if invalid."""
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
    """Return why ranks cannot use this NCCL version, or "" if they can."""
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
    """Return an NCCL library's version code, or 0 if unknown, without loading it or starting a process.

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
            found = re.search(_VERSION_TEXT, text)
            return code_of(found[1].decode()) if found is not None else 0
    except (OSError, ValueError):  # mapping an empty file raises ValueError
        return 0


def load_elsewhere(path: str) -> tuple[int, str]:
    """Load the library in a separate process. Return its version code and an error message ("" on success)."""
    try:
        process = subprocess.run(
            [sys.executable, *boot.standalone_arguments("-c", _LOAD, path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, f"it cannot be tried: {error}"
    answer, _, reason = process.stdout.partition(" ")
    if answer.isdecimal():
        return int(answer), reason.strip()
    return 0, f"the process that loaded it ended with {process.returncode}: {process.stderr.strip()[-500:]}"


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
    """Return the CUDA version that PyTorch was built for, or "" for a build without CUDA. PyTorch is not imported."""
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
