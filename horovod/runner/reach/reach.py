"""The ways to a host: a child on this machine, the user's ssh, or the ssh of an agent that is there already."""

from __future__ import annotations

from typing import Protocol

from horovod.runner.plan.hosts import Host
from horovod.runner.reach import ssh
from horovod.runner.reach.agents import Agent
from horovod.runner.reach.connections import Connection, ProcessConnection, StreamConnection


class Reach(Protocol):
    """How an agent is started on a host and spoken with."""

    def open(self, host: Host) -> Connection:
        """Begin; nothing is waited for. Raises OSError when this machine has not what it takes."""

    def explain(self, host: Host, status: int | None, said: str, greeting: str) -> ssh.Failure:
        """Why the connection ended before the agent's first word. `status`: how it ended; `said`: on its stderr;
        `greeting`: what else came before."""


class ThisMachine:
    def open(self, host: Host) -> Connection:
        return ProcessConnection(ssh.agent_command(), remote=False)

    def explain(self, host: Host, status: int | None, said: str, greeting: str) -> ssh.Failure:
        return ssh.Failure(f"the agent on this machine did not start: exit code {status}", "")


class BySsh:
    def __init__(self, remote: ssh.Remote) -> None:
        self._remote = remote

    def open(self, host: Host) -> Connection:
        return ProcessConnection(ssh.ssh_command(host.name, self._remote, host.python), remote=True)

    def explain(self, host: Host, status: int | None, said: str, greeting: str) -> ssh.Failure:
        return ssh.explain(status or 0, said, host.name, self._remote, host.python, greeting)


class Through(BySsh):
    """By the ssh of another host, whose agent runs it for us."""

    def __init__(self, parent: Agent, remote: ssh.Remote) -> None:
        super().__init__(remote)
        self._parent = parent

    def open(self, host: Host) -> Connection:
        command = ssh.ssh_command(host.name, self._remote, host.python, ask=False)
        return StreamConnection(self._parent, ssh.words(command))
