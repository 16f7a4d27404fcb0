"""Slurm job steps in place of ssh: the command that starts an agent on another node, and its failures. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from horovod.runner.base.exit_status import describe_status
from horovod.runner.remote import ssh

# Variables that describe the allocation, or the user's options for their own steps. They are unset, because an agent's
# step has one task, which gets everything that the allocation has on its node.
_OPTIONS = re.compile(r"SLURM_(?!CONF$|CLUSTERS$|JWT$)|SRUN_|PMI_|PMIX_")


def srun_command(host: str, job: str, python: str, environ: Mapping[str, str]) -> list[str]:
    """Return the command that runs an agent on `host`. `environ` is the environment in which it is run."""
    unset = [word for name in sorted(environ) if _OPTIONS.match(name) for word in ("-u", name)]
    options = [
        f"--jobid={job}", f"--nodelist={host}", "--nodes=1", "--ntasks=1",
        "--no-kill",  # a lost node ends this step only, not the other steps of the allocation
        "--overlap",  # share resources with the step that the launcher may run in
        "--mpi=none", "--cpu-bind=none", "--unbuffered", "--quiet",
    ]  # fmt: skip
    return ["env", *unset, "srun", *options, "--", *ssh.agent_command(python)]


# A cluster without CPU binding prints this for every step that asks for none.
_ODD = "lacks support for cpu binding"
_SHOWN = 12  # maximum lines shown of an agent that failed

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
    """Return why the command of `srun_command` ended with this status and output; like `ssh.explain`."""
    lines = _telling((greeting + "\n" + said).splitlines())
    last = lines[-1] if lines else f"exit code {status}"
    if not lines and status == 127:
        return ssh.Failure("srun cannot be run here", "Slurm's programs have to be on PATH")
    for pattern, known in _KNOWN:
        if re.search(pattern, said):
            return ssh.Failure(known.what.format(last=last), known.advice.format(host=host, job=job), known.again)
    step = f"srun --jobid={job} --overlap --nodelist={host} -N1 -n1 {python} -c 'import horovod'"
    return ssh.Failure(
        f"the agent there did not start: {last}", "\n".join([f"try `{step}`; its complete output:", *lines])
    )


def how_it_broke(_remote: bool, status: int | None, said: Sequence[str]) -> str:
    """Return why an agent that was connected has ended."""
    lines = _telling(said)
    return "\n".join([f"its step has ended: {describe_status(status or 0)}", *lines[-_SHOWN:]])


def _telling(lines: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip() and _ODD not in line]
