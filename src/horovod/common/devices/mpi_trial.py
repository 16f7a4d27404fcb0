"""Test of an MPI library in a separate process that initializes MPI alone and finalizes it.

The asking process stays without MPI. ``main`` runs in the separate process: its argument is the library's path, and it
prints one line of JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from horovod.common.contract import boot

SECONDS: Final = 30.0
# Launcher variables. With them the process would be a rank of some job and wait for the others.
_OF_LAUNCHERS: Final = ("PMI", "PMIX", "OMPI_", "PRTE_", "SLURM_", "MPI_LOCAL", "HYDRA", "MPIR_CVAR_CH4_ROOTS")


class Tried(NamedTuple):
    """Result of testing an MPI library."""

    version: str = ""
    """For example Open MPI 5.0.11."""
    abi: str = ""
    """ABI of the library: Open MPI, MPICH, or the standard MPI ABI."""
    level: str = ""
    """Highest thread level that it grants, such as MPI_THREAD_MULTIPLE."""
    error: str = ""
    """Why it cannot be used; the other fields are empty then."""


def try_mpi(path: str, environ: Mapping[str, str] = os.environ, seconds: float = SECONDS) -> Tried:
    """Test the library. Takes about a second, or ``seconds`` if it does not answer. Never raises."""
    prefix = Path(path).parent.parent
    # To start a single process, Open MPI 4 runs a helper program, which it searches where it was built.
    own = {"OPAL_PREFIX": str(prefix)} if (prefix / "bin/orted").is_file() else {}
    kept = own | {name: value for name, value in environ.items() if not name.startswith(_OF_LAUNCHERS)}
    command = [sys.executable, *boot.words("horovod.common.devices.mpi_trial"), path]
    try:
        done = subprocess.run(
            command, env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Tried(error=f"MPI_Init of {path} takes longer than {seconds:g} s in a process alone")
    except OSError as error:
        return Tried(error=f"it cannot be tried: {error}")
    line = next((line for line in reversed(done.stdout.splitlines()) if line.startswith('{"version"')), None)
    if line is None:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return Tried(error=f"the process that tried {path} ended with {done.returncode} and said: {said[:1000]}")
    return Tried(**json.loads(line))


def main() -> int:
    """Test the MPI library named by this process's argument."""
    from horovod import _core

    try:
        info = _core.mpi_start(sys.argv[1], "", False, SECONDS)
        tried = Tried(info.version, info.abi, info.level)
    except Exception as error:
        tried = Tried(error=str(error))
    print(json.dumps(tried._asdict()), flush=True)
    _core.mpi_finish(5.0)
    return 0
