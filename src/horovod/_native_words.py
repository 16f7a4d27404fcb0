"""Error messages that explain why the native extension cannot be loaded.

This module is separate from ``_absent``, which every ``import horovod`` loads, because its imports are slow.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

STABLE = (3, 12)
"""First Python version whose stable ABI ``_core.abi3.so`` uses."""

_MACHINES = {62: "x86_64", 183: "aarch64"}
"""CPU names by the number in an ELF header (e_machine)."""
_ANEW = (
    "install it anew with this Python, from its source or a wheel: {} -m pip install --force-reinstall FOLDER_OR_WHEEL"
)


@dataclass(frozen=True)
class Running:
    """Properties of the running Python interpreter that an extension must match."""

    version: tuple[int, int]
    free_threaded: bool
    machine: str
    executable: str

    def __str__(self) -> str:
        return f"CPython {'.'.join(map(str, self.version))}{'t' * self.free_threaded} on {self.machine}"


def _running() -> Running:
    threaded = "t" in getattr(sys, "abiflags", "")
    return Running(sys.version_info[:2], threaded, platform.machine(), sys.executable)


def python_version_of(file: str) -> str:
    """Return the Python version for which an extension file was built, judging by its name."""
    if file.endswith(".abi3.so"):
        return f"CPython {'.'.join(map(str, STABLE))} and later, with the GIL"
    known = re.search(r"\.cpython-(\d)(\d+)(t?)-(\w+?)-linux", file)
    return f"CPython {known[1]}.{known[2]}{known[3]} on {known[4]}" if known else "another Python"


def obstacle(found: str | None, there: Sequence[str], folder: str, running: Running) -> str | None:
    """Return the reason why the extension cannot be loaded, or None if the file names show none.

    Args:
        found: File that Python would load, or None.
        there: Names of all such files in the package's directory, for any Python.
        folder: The package's directory.
        running: Python of this process.
    """
    anew = _ANEW.format(running.executable)
    if found is None and not there:
        return f"Horovod's native part is not built: {folder} has no _core; in a checkout, `pip install .` builds it"
    unfit = found is not None and found.endswith(".abi3.so") and (running.version < STABLE or running.free_threaded)
    if found is not None and not unfit:
        return None
    files = ", ".join(f"{name} (for {python_version_of(name)})" for name in ([Path(found).name] if found else there))
    return f"Horovod's native part does not fit this Python, {running}: {folder} has {files}; {anew}"


def explained(error: str, file: str, header: bytes, glibc: str, running: Running) -> str:
    """Return an explanation of a dynamic loader error. This function has no side effects.

    Args:
        error: Text of the error.
        file: Path of the extension.
        header: First 20 bytes of the file.
        glibc: Version of the system's glibc; empty if it has another C library.
        running: Python of this process.
    """
    anew = _ANEW.format(running.executable)
    number = int.from_bytes(header[18:20], "little") if header[:4] == b"\x7fELF" else None
    machine = _MACHINES.get(number, f"CPU number {number}") if number is not None else None
    if machine != running.machine:
        kind = f"is for {machine}" if machine else "is not a library"
        return f"Horovod's native part cannot be loaded: {file} {kind}, and this is {running}; {anew}"
    newer = [tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_(\d+\.\d+)' not found", error)]
    if newer or not glibc:
        needed = f"glibc {'.'.join(map(str, max(newer)))} or later" if newer else "glibc"
        has = f"{glibc}, which is older" if glibc else "another C library"
        build = f"{running.executable} -m pip install --force-reinstall FOLDER_OF_ITS_SOURCE"
        return (
            f"Horovod's native part cannot be loaded: {file} needs {needed}, and this system has {has}; take a "
            f"newer system or image, or build it here, with a C++20 compiler: {build} (the loader says: {error})"
        )
    return f"Horovod's native part cannot be loaded: {error}; {anew}"


def checked(name: str, spec: ModuleSpec | None) -> ModuleSpec | None:
    """Return a module spec that either loads the extension or raises an ImportError with an explanation."""
    folder = Path(__file__).parent
    reason = obstacle(
        spec.origin if spec else None,
        sorted(file.name for file in folder.glob("_core*.so")),
        str(folder),
        _running(),
    )
    if reason:
        # Leave the spec's ``origin`` unset, so that callers that only inspect the spec see that no usable file exists.
        return ModuleSpec(name, _Refusal(reason, name))
    if spec is not None and spec.loader is not None:
        spec.loader = _Explaining(spec)
    return spec


class _Refusal(Loader):
    """Loader that raises an ImportError with an explanation.

    The finder cannot raise the error, because ``importlib.util.find_spec`` would raise it too.
    """

    def __init__(self, reason: str, name: str) -> None:
        self._reason, self._name = reason, name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise ImportError(self._reason, name=self._name)

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(self._reason, name=self._name)


class _Explaining(Loader):
    """Loader wrapper that explains errors of the dynamic loader."""

    def __init__(self, spec: ModuleSpec) -> None:
        assert spec.loader is not None
        self._loader, self._file = spec.loader, spec.origin or ""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        # Restore the spec's original loader, so that later code does not see this wrapper.
        spec.loader = self._loader
        try:
            return self._loader.create_module(spec)
        except ImportError as error:
            spec.loader = self
            with open(self._file, "rb") as file:
                header = file.read(20)
            library, glibc = platform.libc_ver()
            raise ImportError(
                explained(str(error), self._file, header, glibc if library == "glibc" else "", _running()),
                name=spec.name,
                path=self._file,
            ) from error

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
