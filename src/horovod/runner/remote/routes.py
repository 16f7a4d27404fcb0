"""Routes from the launcher to all hosts, and retries after failed connections.

With more than `fanout` other hosts, the launcher connects only to the first `fanout`. Each of these hosts connects to
some of the others, and so on, as in a heap-indexed tree. In elastic jobs, the launcher connects to all hosts.

If the connection from another host fails, for example because that host has no ssh key, the launcher connects directly.
If a direct connection fails temporarily, the launcher retries until RETRY_UNTIL. Then it gives up the host.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from horovod.runner.base.job_result import describe_status
from horovod.runner.plan import hosts
from horovod.runner.plan.hosts import Host
from horovod.runner.remote import ssh
from horovod.runner.remote.connections import Agent, Connection, ProcessConnection, StreamConnection

RETRY_SECONDS = 1.0
# Maximum seconds between the first and the last attempt to connect, so that a failure is reported within 10 s
RETRY_UNTIL = 7.0


class Routes:
    """Tree that defines, for each host, the parent host through which it is reached."""

    def __init__(self, hosts: Sequence[str], fanout: int) -> None:
        # The first `fanout` hosts have no parent. The parent of host i is host i // fanout - 1.
        self._parents = {hosts[i]: hosts[i // fanout - 1] for i in range(fanout, len(hosts))}

    def parent(self, host: str) -> str | None:
        """Return the host through which this host is reached, or None if the launcher connects to it directly."""
        return self._parents.get(host)

    def children(self, host: str) -> list[str]:
        """Return the hosts that are reached through this host."""
        return [child for child, parent in self._parents.items() if parent == host]

    def depth(self, host: str) -> int:
        """Return the number of other hosts on the route from the launcher to this host."""
        parent = self.parent(host)
        return 0 if parent is None else 1 + self.depth(parent)

    def after_failure(self, host: str, again: bool, tried: float, now: float) -> float | None:
        """Return when to try again to reach the host, possibly by another route.

        Args:
            host: Host that could not be reached.
            again: True if the failure might be temporary.
            tried: Time of the first attempt (monotonic, s).
            now: Current time (monotonic, s).

        Returns:
            Time of the next attempt (monotonic, s), or None to give up on the host.
        """
        late = now - tried >= RETRY_UNTIL
        if host in self._parents and not (again and late):
            del self._parents[host]
            return now
        return now + RETRY_SECONDS if again and not late else None


# Variables to unset for `srun`. They describe the allocation or are the user's options for other job steps, and could
# limit the agent to a part of its node's resources.
_OPTIONS = re.compile(r"SLURM_(?!CONF$|CLUSTERS$|JWT$)|SRUN_|PMI_|PMIX_")


def srun_command(host: str, job: str, python: str, environ: Mapping[str, str]) -> list[str]:
    """Return the command that runs an agent on `host` as a Slurm job step.

    `environ` is the environment in which the command will run.
    """
    unset = [word for name in sorted(environ) if _OPTIONS.match(name) for word in ("-u", name)]
    options = [
        f"--jobid={job}", f"--nodelist={host}", "--nodes=1", "--ntasks=1",
        "--no-kill",  # If a node is lost, end only this step, not the other steps of the allocation.
        "--overlap",  # Share resources with the step in which the launcher runs.
        "--mpi=none", "--cpu-bind=none", "--unbuffered", "--quiet",
    ]  # fmt: skip
    return ["env", *unset, "srun", *options, "--", *ssh.agent_command(python)]


# On clusters without CPU binding, `srun --cpu-bind=none` prints a harmless line with this text, which is ignored.
_ODD = "lacks support for cpu binding"
_SHOWN = 12  # Maximum number of lines of a failed agent's output that messages show

_FAILURES: tuple[tuple[str, ssh.Failure], ...] = (
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


def explain(status: int, stderr: str, host: str, job: str, python: str, greeting: str = "") -> ssh.Failure:
    """Explain why the command returned by `srun_command` failed. The arguments are the same as for `ssh.explain`."""
    lines = _telling((greeting + "\n" + stderr).splitlines())
    last = lines[-1] if lines else f"exit code {status}"
    if not lines and status == 127:
        return ssh.Failure("srun cannot be run here", "Slurm's programs have to be on PATH")
    for pattern, known in _FAILURES:
        if re.search(pattern, stderr):
            return ssh.Failure(known.what.format(last=last), known.advice.format(host=host, job=job), known.again)
    step = f"srun --jobid={job} --overlap --nodelist={host} -N1 -n1 {python} -c 'import horovod'"
    return ssh.Failure(
        f"the agent there did not start: {last}", "\n".join([f"try `{step}`; its complete output:", *lines])
    )


def how_it_broke(_remote: bool, status: int | None, stderr: Sequence[str]) -> str:
    """Explain why an agent exited after it had connected to the launcher."""
    lines = _telling(stderr)
    return "\n".join([f"its step has ended: {describe_status(status or 0)}", *lines[-_SHOWN:]])


def _telling(lines: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip() and _ODD not in line]


class Reach(Protocol):
    """Interface for starting an agent on a host and connecting to it, for example over ssh."""

    def open(self, host: Host) -> Connection:
        """Start connecting without blocking. Raises OSError if this machine lacks a program or resource."""

    def explain(self, host: Host, status: int | None, stderr: str, greeting: str) -> ssh.Failure:
        """Explain why the connection ended before the agent's first message.

        Args:
            host: Host of the agent.
            status: Exit status of the process, or None if it is unknown.
            stderr: Text that the process wrote to stderr.
            greeting: Text that the process wrote to stdout.
        """


class ThisMachine:
    """Agent launcher for this machine, which runs the agent as a child process."""

    def open(self, host: Host) -> Connection:
        return ProcessConnection(ssh.agent_command(), remote=False)

    def explain(self, host: Host, status: int | None, stderr: str, greeting: str) -> ssh.Failure:
        return ssh.Failure(f"the agent on this machine did not start: exit code {status}", "")


class BySsh:
    """Agent launcher for another host, which it reaches over a direct ssh connection."""

    def __init__(self, remote: ssh.Remote) -> None:
        self._remote = remote

    def open(self, host: Host) -> Connection:
        return ProcessConnection(ssh.ssh_command(host.name, self._remote, host.python), remote=True)

    def explain(self, host: Host, status: int | None, stderr: str, greeting: str) -> ssh.Failure:
        return ssh.explain(status or 0, stderr, host.name, self._remote, host.python, greeting)


class Through(BySsh):
    """Agent launcher over ssh from another host. The agent on that other host runs the ssh command."""

    def __init__(self, parent: Agent, remote: ssh.Remote) -> None:
        super().__init__(remote)
        self._parent = parent

    def open(self, host: Host) -> Connection:
        command = ssh.ssh_command(host.name, self._remote, host.python, ask=False)
        return StreamConnection(self._parent, ssh.encode_command(command))


class BySrun:
    """Agent launcher for a node of a Slurm allocation, which runs the agent as a job step.

    All steps are started from this machine, because Slurm distributes the work to the nodes itself.
    """

    def __init__(self, remote: ssh.Remote) -> None:
        self._job = remote.slurm_job
        self._python = remote.python

    def open(self, host: Host) -> Connection:
        python = host.python or self._python
        return ProcessConnection(srun_command(host.name, self._job, python, os.environ), remote=True)

    def explain(self, host: Host, status: int | None, stderr: str, greeting: str) -> ssh.Failure:
        python = host.python or self._python or sys.executable
        return explain(status or 0, stderr, host.name, self._job, python, greeting)


class Locality:
    """Asynchronous check of whether host names refer to this machine.

    It uses threads, because name resolution can be slow.

    Attributes:
        fd: Descriptor that is readable when an answer is available.
    """

    def __init__(self, asks_ssh: bool, looks: bool = True) -> None:
        """Create the event descriptor.

        Args:
            asks_ssh: True if other hosts are reached by ssh. The user's ssh configuration is then also queried.
            looks: True to look up host names. If False, no host is treated as this machine.
        """
        self._looks = looks
        self._asks_ssh = asks_ssh
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._closed = False
        self._replies: dict[str, bool] = {}

    def ask(self, host: str) -> None:
        """Start checking whether the host name refers to this machine."""
        if not self._looks:
            self._record_reply(host, False)
            return
        threading.Thread(target=self._find, args=(host,), name="horovod-locality", daemon=True).start()

    def _find(self, host: str) -> None:
        local = hosts.is_local(host)
        if not local and self._asks_ssh:
            ssh.ask_rules([host])  # Query ssh's configuration in this thread; later queries use the cached result.
        self._record_reply(host, local)

    def _record_reply(self, host: str, local: bool) -> None:
        with self._lock:
            if not self._closed:
                self._replies[host] = local
                os.eventfd_write(self.fd, 1)

    def replies(self) -> dict[str, bool]:
        """Return the answers received since the last call, by host name. True means that the host is this machine."""
        with self._lock:
            try:
                os.eventfd_read(self.fd)
            except BlockingIOError:
                return {}
            answers, self._replies = self._replies, {}
        return answers

    def close(self) -> None:
        """Close the event descriptor, without waiting for running lookups."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.fd)
