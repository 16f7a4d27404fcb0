"""Find the MPI library and test it in a separate process.

The engine loads the library at run time, so that one wheel works with every MPI library. Two MPI libraries in one
process would form two separate jobs. So the search prefers a library that the process has already loaded. The next
choice is the library that is installed beside the process's launcher.

The test (``try_mpi``) must not initialize MPI in the calling process, so it starts this module in another process. That
process initializes MPI alone, finalizes it, and prints one line of JSON.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from horovod.common.contract import boot
from horovod.common.devices.libraries import LOADED, Library, Missing, of_system

VARIABLE: Final = "HOROVOD_MPI_LIBRARY"

OPEN_MPI: Final = ("libmpi.so.40", "libmpi_ibm.so.40")
MPICH: Final = ("libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12")
STANDARD: Final = ("libmpi_abi.so.1", "libmpi_abi.so.0")

_MAPPED = re.compile(r"(/\S*/lib(?:mpi|mpich|mpi_abi|mpi_cray|mpi_ibm)\.so[.\d]*)$", re.MULTILINE)
# Names of launcher programs. A process finds its launcher among its ancestors.
_LAUNCHERS = re.compile(r"mpirun|mpiexec|orterun|orted|prterun|prted|prte|hydra_pmi_proxy|hydra_bstrap_proxy|pmi_proxy")
_DEPTH = 16


def find(environ: Mapping[str, str], launcher: str = "") -> Library | Missing:
    """Return the MPI library that a process with this environment uses, without loading it.

    The search order is HOROVOD_MPI_LIBRARY, a library that is already loaded (for example by mpi4py), a library beside
    the launcher's programs, the system's library, and a library beside Python. If the launcher is known, only libraries
    of a matching family are considered.

    Args:
        environ: Environment of the process.
        launcher: ``Place.launcher``, or "" if unknown.

    Raises:
        ValueError: If the process has loaded two MPI libraries, or one that differs from HOROVOD_MPI_LIBRARY. The
            message names the files.
    """
    value = environ.get(VARIABLE, "").strip()
    mapped = loaded()
    if len(mapped) > 1:
        raise ValueError(
            f"this process must have one MPI library, got {mapped[0]} and {mapped[1]}; a program that uses MPI itself "
            f"(with mpi4py, for example) must load the library that {VARIABLE} names"
        )
    if value:
        path = value if os.path.isfile(value) else "" if "/" in value else of_system(value, environ)
        if not path:
            return Missing(f"{VARIABLE} is {value!r}, and there is no such file")
        if mapped and not os.path.samefile(mapped[0], path):
            raise ValueError(f"{VARIABLE} is {value!r}, but this process has loaded another MPI already, {mapped[0]}")
        return Library(path, VARIABLE)
    if mapped:
        return Library(mapped[0], LOADED)
    names = candidates(environ, launcher)
    for library in _places(environ, names):
        return library
    return Missing(
        f"there is none of {', '.join(names)}: neither beside {launcher or 'a launcher of MPI'}, nor where "
        f"LD_LIBRARY_PATH or the system's loader looks, nor in {os.path.join(sys.prefix, 'lib')}; give its path as "
        f"{VARIABLE}"
    )


def find_for_launch(environ: Mapping[str, str]) -> Library | Missing:
    """Return the MPI library that processes started by the mpirun or mpiexec in PATH would use on this host.

    If PATH contains neither program, return the result of ``find``.

    Raises:
        ValueError: If ``find`` would raise it.
    """
    if not environ.get(VARIABLE, "").strip():
        for name in ("mpirun", "mpiexec"):
            if program := shutil.which(name, path=environ.get("PATH")):
                for library in _beside(Path(os.path.realpath(program)), (*OPEN_MPI, *MPICH, *STANDARD)):
                    return Library(library, f"beside {program}")
    return find(environ)


def maker(launcher: str) -> str:
    """Return the MPI of a launcher (``Place.launcher``): "Open MPI", "MPICH", or "" if the launcher works with both."""
    return {"Open MPI": "Open MPI", "jsrun": "Open MPI", "MPICH": "MPICH"}.get(launcher, "")


def candidates(environ: Mapping[str, str], launcher: str) -> tuple[str, ...]:
    """Return the names of libraries that work with this launcher, most likely first."""
    if maker(launcher) == "Open MPI":
        return (*OPEN_MPI, *STANDARD)
    if maker(launcher) == "MPICH":
        return (*MPICH, *STANDARD)
    if "PMIX_NAMESPACE" in environ:  # Slurm sets this variable when it uses PMIx
        return (*OPEN_MPI, *MPICH, *STANDARD)
    return (*MPICH, *OPEN_MPI, *STANDARD)


def loaded(pid: int | None = None) -> list[str]:
    """Return the MPI libraries that a process has loaded, or an empty list if this cannot be determined."""
    try:
        with open(f"/proc/{os.getpid() if pid is None else pid}/maps") as file:
            found = _MAPPED.findall(file.read())
    except OSError:
        return []
    return list(dict.fromkeys(found))


def _places(environ: Mapping[str, str], names: tuple[str, ...]) -> Iterator[Library]:
    for program in _launchers():
        for path in _beside(program, names):
            yield Library(path, "beside the launcher")
    for name in names:
        if path := of_system(name, environ):
            yield Library(path, "the system")
    beside_python = Path(sys.prefix, "lib")
    for name in names:
        if (beside_python / name).is_file():
            yield Library(str(beside_python / name), "beside Python")


def _beside(program: Path, names: tuple[str, ...]) -> Iterator[str]:
    for folder in ("lib", "lib64"):
        for name in names:
            if (path := program.parent.parent / folder / name).is_file():
                yield str(path)


def _launchers() -> Iterator[Path]:
    """Yield the launcher programs among this process's ancestors, nearest first."""
    pid = os.getpid()
    for _ in range(_DEPTH):
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
            program = Path(os.readlink(f"/proc/{pid}/exe"))
        # Stop at the last ancestor, or at one that belongs to another user.
        except (OSError, ValueError, IndexError):
            return
        if _LAUNCHERS.match(program.name):
            yield program


SECONDS: Final = 30.0
# Prefixes of launcher variables that the test process must not get, because it would join the job and wait for ranks.
_OF_LAUNCHERS: Final = ("PMI", "PMIX", "OMPI_", "PRTE_", "SLURM_", "MPI_LOCAL", "HYDRA", "MPIR_CVAR_CH4_ROOTS")


class MpiTest(NamedTuple):
    """Result of testing an MPI library."""

    version: str = ""
    """Name and version of the library, such as "Open MPI 5.0.11"."""
    abi: str = ""
    """ABI of the library: Open MPI, MPICH, or the standard MPI ABI."""
    level: str = ""
    """Highest thread level that the library grants, such as MPI_THREAD_MULTIPLE."""
    error: str = ""
    """Reason why the library cannot be used. The other fields are then empty."""


def try_mpi(path: str, environ: Mapping[str, str] = os.environ, seconds: float = SECONDS) -> MpiTest:
    """Test an MPI library. This takes about a second, and at most ``seconds``. Never raises."""
    prefix = Path(path).parent.parent
    # Open MPI 4 runs a helper program even for one process, and expects it under its build-time prefix.
    own = {"OPAL_PREFIX": str(prefix)} if (prefix / "bin/orted").is_file() else {}
    kept = own | {name: value for name, value in environ.items() if not name.startswith(_OF_LAUNCHERS)}
    command = [sys.executable, *boot.arguments("horovod.common.devices.mpi_libraries"), path]
    try:
        process = subprocess.run(
            command, env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return MpiTest(error=f"MPI_Init of {path} takes longer than {seconds:g} s in a process alone")
    except OSError as error:
        return MpiTest(error=f"it cannot be tried: {error}")
    line = next((line for line in reversed(process.stdout.splitlines()) if line.startswith('{"version"')), None)
    if line is None:
        output = (process.stderr.strip().splitlines() or ["nothing"])[-1]
        return MpiTest(error=f"the process that tried {path} ended with {process.returncode} and said: {output[:1000]}")
    return MpiTest(**json.loads(line))


def main() -> int:
    """Test the MPI library whose path is this program's first argument."""
    from horovod import _core

    try:
        info = _core.mpi_start(sys.argv[1], "", False, SECONDS)
        tried = MpiTest(info.version, info.abi, info.level)
    except Exception as error:
        tried = MpiTest(error=str(error))
    print(json.dumps(tried._asdict()), flush=True)
    _core.mpi_finish(5.0)
    return 0
