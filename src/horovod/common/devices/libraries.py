"""Find the GPU libraries: CUDA driver, NCCL and NVTX.

The search happens at run time, so that one wheel works with and without GPUs. This module loads no library except
CUDA's driver, in ``driver_error``, and does not initialize the driver.

NCCL needs special care. Frameworks that are imported later also use the first libnccl.so.2 that the process loads, and
an older version breaks them ("undefined symbol: ncclCommX"). So ranks first only search for NCCL. They load it at their
first GPU operation, when the frameworks have been loaded.
"""

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

DRIVER: Final = "libcuda.so.1"  # do not use libcuda.so without a version, which can be a stub from the CUDA toolkit
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
    """Return the name or path of CUDA's driver, for dlopen."""
    return environ.get(DRIVER_VARIABLE, "").strip() or DRIVER


def driver_error(environ: Mapping[str, str]) -> str:
    """Return the reason why CUDA's driver cannot be loaded, or "" if it can.

    The driver stays loaded but is not initialized (cuInit), so the process can still fork.
    """
    name = driver(environ)
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return f"{name} cannot be loaded: {error}"
    return ""


class Search(NamedTuple):
    """Locations in which the engine looks for NCCL on first use, after frameworks have loaded theirs."""

    chosen: str
    """Library that the user has chosen. If not empty, no other library is tried."""
    candidates: list[str]
    """Libraries to try if none is loaded yet: first paths, then names for the loader."""


def nccl_search(environ: Mapping[str, str]) -> Search:
    """Return the locations in which the engine must look for NCCL, in the search order of ``nccl``.

    Cached, because a search takes 3 ms, which delays elastic ranks joining an epoch.
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
    """Yield the files at this relative path in the directories of the package `nvidia`."""
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
