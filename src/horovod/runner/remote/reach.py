"""Ways to reach a host: a child on this machine, the user's ssh, the ssh of a connected agent, or a Slurm step."""

from __future__ import annotations

import os
import sys
from typing import Protocol

from horovod.runner.plan.hosts import Host
from horovod.runner.remote import srun, ssh
from horovod.runner.remote.agents import Agent
from horovod.runner.remote.connections import Connection, ProcessConnection, StreamConnection


class Reach(Protocol):
    """How an agent is started on a host and connected to."""

    def open(self, host: Host) -> Connection:
        """Start to connect, without blocking. Raises OSError when this machine lacks a program or resource."""

    def explain(self, host: Host, status: int | None, said: str, greeting: str) -> ssh.Failure:
        """Return why the connection ended before the agent's first message.

        Args:
            host: Host of the agent.
            status: Exit status of the process, if known.
            said: Its stderr.
            greeting: Its other output.
        """


class ThisMachine:
    """Reach of this machine: the agent is a child process."""

    def open(self, host: Host) -> Connection:
        return ProcessConnection(ssh.agent_command(), remote=False)

    def explain(self, host: Host, status: int | None, said: str, greeting: str) -> ssh.Failure:
        return ssh.Failure(f"the agent on this machine did not start: exit code {status}", "")


class BySsh:
    """Reach over a direct ssh connection of the user's."""

    def __init__(self, remote: ssh.Remote) -> None:
        self._remote = remote

    def open(self, host: Host) -> Connection:
        return ProcessConnection(ssh.ssh_command(host.name, self._remote, host.python), remote=True)

    def explain(self, host: Host, status: int | None, said: str, greeting: str) -> ssh.Failure:
        return ssh.explain(status or 0, said, host.name, self._remote, host.python, greeting)


class Through(BySsh):
    """Reach over the ssh of another host, run by that host's agent."""

    def __init__(self, parent: Agent, remote: ssh.Remote) -> None:
        super().__init__(remote)
        self._parent = parent

    def open(self, host: Host) -> Connection:
        command = ssh.ssh_command(host.name, self._remote, host.python, ask=False)
        return StreamConnection(self._parent, ssh.encode_command(command))


class BySrun:
    """Reach by a step of a Slurm allocation. All nodes are reached from here, since Slurm has its own fan-out tree."""

    def __init__(self, remote: ssh.Remote) -> None:
        self._job = remote.slurm_job
        self._python = remote.python

    def open(self, host: Host) -> Connection:
        python = host.python or self._python
        return ProcessConnection(srun.srun_command(host.name, self._job, python, os.environ), remote=True)

    def explain(self, host: Host, status: int | None, said: str, greeting: str) -> ssh.Failure:
        python = host.python or self._python or sys.executable
        return srun.explain(status or 0, said, host.name, self._job, python, greeting)
