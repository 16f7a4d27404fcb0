"""Discovery script for a Slurm allocation, which prints the nodes that are neither drained nor down.

The only argument is the number of slots per node. The default is the node's number of tasks. The script is a separate
program, because Slurm's controller can take seconds to answer.
"""

from __future__ import annotations

import os
import subprocess
import sys

from horovod.common.contract import boot
from horovod.runner.base.errors import LaunchError
from horovod.runner.plan import allocations

EVERY = 5.0  # The script runs every EVERY seconds. Each run puts load on a controller that all users share.
SECONDS = 4.0  # Time limit of each of the two queries (s), so that both fit into the time limit of the script.


def command(each: int | None) -> list[str]:
    """Return the command that runs this module as a script. `each` is the number of slots per node."""
    return [
        sys.executable,
        *boot.arguments("horovod.runner.elastic.slurm_nodes"),
        *([] if each is None else [str(each)]),
    ]


def main() -> int:
    """Print the usable nodes of the allocation, and return the exit code of the script."""
    given = allocations.allocation(os.environ)
    try:
        if given is None:
            raise LaunchError("SLURM_JOB_ID must be set: this is not a Slurm allocation")
        nodes = allocations.nodes_of(ask("squeue", "-h", "-j", given.job, "-o", "%T|%N"), given.job)
        found = allocations.usable(ask("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", "%N|%T"), nodes)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return 1
    print(end=allocations.lines(found, given.slots, int(sys.argv[1]) if len(sys.argv) > 1 else None))
    return 0


def ask(program: str, *arguments: str, seconds: float = SECONDS) -> str:
    """Run a Slurm command and return its output. Raises LaunchError if it fails or is too slow."""
    # Ignore the user's settings for Slurm commands, because they would change the output.
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("SQUEUE_", "SINFO_"))}
    try:
        done = subprocess.run(
            [program, *arguments], env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{program} did not answer within {seconds:g} s; is Slurm's controller up?") from None
    except OSError as error:
        raise LaunchError(f"{program} cannot be run: {error.strerror}; Slurm's programs have to be on PATH") from None
    if done.returncode != 0:
        raise LaunchError(f"{program} failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
