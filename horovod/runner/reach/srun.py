"""A job step of Slurm in place of ssh: the command that starts an agent on another node of the allocation, and what its
failures mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from horovod.runner.base.exit_status import describe_status
from horovod.runner.reach import ssh

# Of the allocation, and of what the user wants of steps of their own: an agent's step has one task, which gets all that
# the allocation has on its node.
_OPTIONS = re.compile(r"SLURM_(?!CONF$|CLUSTERS$|JWT$)|SRUN_|PMI_|PMIX_")


def srun_command(host: str, job: str, python: str, environ: Mapping[str, str]) -> list[str]:
    """The command that runs an agent on `host`. `environ`: of whoever runs it."""
    unset = [word for name in sorted(environ) if _OPTIONS.match(name) for word in ("-u", name)]
    options = [
        f"--jobid={job}", f"--nodelist={host}", "--nodes=1", "--ntasks=1",
        "--no-kill",  # the step's node is lost: that ends this step only, not the allocation's others
        "--overlap",  # beside the step that the launcher may run in
        "--mpi=none", "--cpu-bind=none", "--unbuffered", "--quiet",
    ]  # fmt: skip
    return ["env", *unset, "srun", *options, "--", *ssh.agent_command(python)]


# A cluster that binds nobody says so of every step that is not to be bound.
_ODD = "lacks support for cpu binding"
_SHOWN = 12  # lines of what an agent that failed has said

_KNOWN: tuple[tuple[str, ssh.Failure], ...] = (
    (
        r"not in this allocation|Invalid node name|Requested node configuration is not available|DRAINED|DOWN",
        ssh.Failure("Slurm gives no step there ({last})", "see `scontrol show node {host}`"),
    ),
    (
        r"Invalid job id|Job/step already completing|has already finished|Expired or invalid",
        ssh.Failure("the allocation has ended ({last})", "see `scontrol show job {job}`"),
    ),
    (
        r"[Tt]imed out|Unable to contact slurm controller|Communication connection failure|Connection refused",
        ssh.Failure("Slurm cannot reach it ({last})", "see `scontrol show node {host}`", again=True),
    ),
)


def explain(status: int, said: str, host: str, job: str, python: str, greeting: str = "") -> ssh.Failure:
    """What it means that the command of `srun_command` ended with this status and these words; as `ssh.explain`."""
    lines = _telling((greeting + "\n" + said).splitlines())
    last = lines[-1] if lines else f"exit code {status}"
    if not lines and status == 127:
        return ssh.Failure("srun cannot be run here", "Slurm's programs have to be on PATH")
    for pattern, known in _KNOWN:
        if re.search(pattern, said):
            return ssh.Failure(known.what.format(last=last), known.advice.format(host=host, job=job), known.again)
    step = f"srun --jobid={job} --overlap --nodelist={host} -N1 -n1 {python} -c 'import horovod'"
    return ssh.Failure(
        f"the agent there did not start: {last}", "\n".join([f"try `{step}`; everything it said:", *lines])
    )


def how_it_broke(_remote: bool, status: int | None, said: Sequence[str]) -> str:
    """Why an agent that was there is there no more."""
    lines = _telling(said)
    return "\n".join([f"its step has ended: {describe_status(status or 0)}", *lines[-_SHOWN:]])


def _telling(lines: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip() and _ODD not in line]
