"""Where the libraries for GPUs are: CUDA's driver, NCCL or AMD's RCCL, NVTX. Found at run time, so that one wheel
serves machines with and without GPUs; nothing is loaded here, except CUDA's driver by ``driver_error``, which does not
start it.

NCCL is the difficult one. The first libnccl.so.2 in a process, from wherever, is the one that a framework imported
later gets; an older one then breaks it ("undefined symbol: ncclCommX"). So ranks load NCCL at their first operation on
a GPU, when the frameworks are there, and before that only look where it is.
"""

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

DRIVER: Final = "libcuda.so.1"  # never libcuda.so, which may be the toolkit's stub
NCCL: Final = "libnccl.so.2"
RCCL: Final = "librccl.so.1"

NCCL_FILES: Final = ("~/.nccl.conf", "/etc/nccl.conf")
NCCL_VARIABLE: Final = "HOROVOD_NCCL_LIBRARY"
DRIVER_VARIABLE: Final = "HOROVOD_CUDA_LIBRARY"

# Where packages of NVIDIA put them, below `nvidia`. Those of CUDA 12 and 13 use the same file for NCCL.
_NCCL_WHEEL: Final = "nccl/lib/libnccl.so.2"
_NVTX_WHEELS: Final = ("cu13/lib/libnvtx3interop.so.1", "nvtx/lib/libnvToolsExt.so.1")
_SYSTEM: Final = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/lib64")
CACHE = "/etc/ld.so.cache"
_ROCM: Final = "/opt/rocm/lib"
JIT: Final = "libnvidia-ptxjitcompiler.so.1"


LOADED: Final = "loaded already"


class Library(NamedTuple):
    """A library that was found."""

    path: str
    source: str
    """What led to it: a variable's name, "loaded already", "a package of Python", "beside Python" (as in conda's
    environments), "PyTorch", "the system"."""


class Missing(NamedTuple):
    """One that was not."""

    reason: str


def driver(environ: Mapping[str, str]) -> str:
    """Name or path of CUDA's driver for dlopen."""
    return environ.get(DRIVER_VARIABLE, "").strip() or DRIVER


def driver_error(environ: Mapping[str, str]) -> str:
    """Why CUDA's driver cannot be loaded; empty: it can. Loads it, and leaves it loaded, without starting it (cuInit),
    so that the process may still fork."""
    name = driver(environ)
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return f"{name} cannot be loaded: {error}"
    return ""


class Search(NamedTuple):
    """Where the engine is to look for NCCL when it first needs it, by when frameworks have loaded theirs."""

    chosen: str
    """By the user; where not empty, nothing else is tried."""
    candidates: list[str]
    """After what the process has loaded already: paths, then the names by which the loader may find one."""


def nccl_search(environ: Mapping[str, str]) -> Search:
    """The same order as that of ``nccl``, for the engine. Files are looked for once in a process: they take 3 ms, a
    quarter of what a rank of an elastic job computes to join its next epoch."""
    key = (environ.get("LD_LIBRARY_PATH", ""), *sys.path)
    if key not in _searched:
        _searched[key] = [library.path for library in _nccls(environ) if library.source != LOADED]
    return Search(environ.get(NCCL_VARIABLE, "").strip(), [*_searched[key], NCCL, RCCL])


_searched: dict[tuple[str, ...], list[str]] = {}


def nccl(environ: Mapping[str, str]) -> Library | Missing:
    """The NCCL that a rank of this environment uses, without loading it: that of the variable; else the one in this
    process already; else that of Python's packages; else the system's; else AMD's."""
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
    for name in (NCCL, RCCL):
        if path := loaded(name):
            yield Library(path, LOADED)
    for path in in_packages(_NCCL_WHEEL):
        yield Library(path, "a package of Python")
    if path := _file(os.path.join(sys.prefix, "lib", NCCL)):
        yield Library(path, "beside Python")
    if path := of_system(NCCL, environ):
        yield Library(path, "the system")
    for path in beside_torch("librccl.so"):
        yield Library(path, "PyTorch")
    if path := of_system(RCCL, environ) or _file(f"{_ROCM}/{RCCL}"):
        yield Library(path, "the system")


def have_nccl_warn(environ: MutableMapping[str, str], files: Sequence[str] = NCCL_FILES) -> None:
    """Has NCCL say in the rank's output why something fails (NCCL_DEBUG=WARN), unless the environment or one of its
    files says otherwise. It reads both once, when it is first used."""
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
    """The library that marks ranges for NVIDIA's profilers."""
    for wheel in _NVTX_WHEELS:
        for path in in_packages(wheel):
            return Library(path, "a package of Python")
    for wheel in _NVTX_WHEELS:
        if path := of_system(wheel.rsplit("/", 1)[1], environ):
            return Library(path, "the system")
    return Missing("there is neither libnvtx3interop.so.1 nor libnvToolsExt.so.1")


def loaded(name: str) -> str:
    """Path of the library by this name that is in this process, whoever loaded it and however; empty: none is."""
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return _origin(library) or name
    except OSError:
        return ""


class _LinkMap(ctypes.Structure):
    """The beginning of glibc's struct link_map."""

    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]


def _origin(library: ctypes.CDLL) -> str:
    """The file that a handle of dlopen stands for."""
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
    """Files of this name below the folders of the packages `nvidia`, of which there may be several."""
    for folder in folders_of("nvidia"):
        if path := _file(os.path.join(folder, below)):
            yield path


def beside_torch(name: str) -> Iterator[str]:
    """Files of this name among PyTorch's own libraries."""
    for folder in folders_of("torch"):
        if path := _file(os.path.join(folder, "lib", name)):
            yield path


def folders_of(package: str) -> list[str]:
    """Where a package lies; it is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec is not None else []


def of_system(name: str, environ: Mapping[str, str], cache: str = "") -> str:
    """Where the loader would find the library; empty: nowhere. ``cache``: the file that ldconfig writes, else CACHE."""
    for folder in environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and (path := _file(os.path.join(folder, name))):
            return path
    try:
        with open(cache or CACHE, "rb") as file:
            # Whatever its version: names and paths stand in it as texts that end with a zero.
            paths = re.findall(rb"/[^\0]*/" + re.escape(name.encode()) + rb"(?=\0)", file.read())
    except OSError:
        paths = []
    candidates = [*map(os.fsdecode, paths), *(os.path.join(folder, name) for folder in _SYSTEM)]
    return next(filter(None, map(_file, candidates)), "")


def _file(path: str) -> str:
    return path if Path(path).is_file() else ""
