"""What a library of MPI says and grants, found by a process of its own that begins MPI alone and ends it: whoever asks
stays without.

``main`` runs in that process: it gets the library's path as its argument and prints one line of JSON.
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
# Of a launcher: with these it would be a rank of somebody's job, and wait for the others.
_OF_LAUNCHERS: Final = ("PMI", "PMIX", "OMPI_", "PRTE_", "SLURM_", "MPI_LOCAL", "HYDRA", "MPIR_CVAR_CH4_ROOTS")


class Tried(NamedTuple):
    version: str = ""
    """As in Open MPI 5.0.11."""
    abi: str = ""
    """Whose numbers and handles it has: Open MPI, MPICH, or the standard ABI of MPI."""
    level: str = ""
    """The most that it grants, as in MPI_THREAD_MULTIPLE."""
    error: str = ""
    """Why it cannot be used; the rest is empty then."""


def try_mpi(path: str, environ: Mapping[str, str] = os.environ, seconds: float = SECONDS) -> Tried:
    """Takes a second, or ``seconds`` if it does not answer. Never raises."""
    prefix = Path(path).parent.parent
    # Open MPI 4 begins a process alone by a program of its own, which it looks for where it was built.
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
    """Try the library of MPI that this process's argument names."""
    from horovod import _core

    try:
        info = _core.mpi_start(sys.argv[1], "", False, SECONDS)
        tried = Tried(info.version, info.abi, info.level)
    except Exception as error:
        tried = Tried(error=str(error))
    print(json.dumps(tried._asdict()), flush=True)
    _core.mpi_finish(5.0)
    return 0
