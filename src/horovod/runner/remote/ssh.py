"""Commands that start agents over ssh, and explanations of their failures.

The module performs no I/O, except that it queries the user's ssh configuration.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from horovod.common.contract import boot
from horovod.runner.agent.messages import MAGIC

# Time limit in seconds for an attempt of ssh to connect to an address
CONNECT_SECONDS = 8
# The keepalive options end an ssh client whose host is lost, even if the launcher, with its heartbeats, has died.
_KEEPALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
# ssh may use a connection that another ssh process of the user shares (ControlMaster). It must not share its own
# connection, which ends with the job. Remote commands and port forwardings in the user's configuration are ignored,
# because they are meant for interactive use.
_PLAIN = ("-o", "ControlMaster=no", "-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes")
_UNANSWERED = ("BatchMode=yes", "PasswordAuthentication=no", f"ConnectTimeout={CONNECT_SECONDS}")
# Kubernetes' MPI operator sets OMPI_MCA_plm_rsh_agent to a program that, like ssh, gets a host and a command to run.
AGENT_VARIABLE = "OMPI_MCA_plm_rsh_agent"


@dataclass(frozen=True)
class Remote:
    """Options for reaching other hosts.

    Attributes:
        port: Port of the ssh servers, or None for ssh's default.
        identity_file: Path of the private key, or None for ssh's default.
        python: Python interpreter on the other hosts, unless a host has its own setting.
        agent: Program that replaces ssh. Empty to use ssh.
        slurm_job: Job id of the Slurm allocation whose job steps replace ssh. Empty to use ssh.
    """

    port: int | None = None
    identity_file: str | None = None
    python: str = ""
    agent: str = ""
    slurm_job: str = ""

    @classmethod
    def of(
        cls,
        environ: Mapping[str, str],
        port: int | None,
        identity_file: str | None,
        python: str = "",
        slurm_job: str = "",
    ) -> Remote:
        """Create the options, using the replacement for ssh that the environment variable AGENT_VARIABLE names."""
        return cls(port, identity_file, python, environ.get(AGENT_VARIABLE, ""), slurm_job)

    @property
    def by_ssh(self) -> bool:
        """True if other hosts are reached with ssh rather than a replacement for it."""
        return not self.agent and not self.slurm_job


def agent_command(python: str = "") -> list[str]:
    """Return the command that starts an agent on its host. The command contains no job data."""
    # The agent prints MAGIC first, because the shell might have printed other text before.
    return [python or sys.executable, *boot.arguments("horovod.runner.agent.agent", f"os.write(1, {MAGIC!r})")]


def ssh_command(host: str, remote: Remote, python: str = "", *, ask: bool = True) -> list[str]:
    """Return the ssh command that runs an agent on `host`.

    Args:
        host: Host to connect to.
        remote: Options for ssh.
        python: Python interpreter on that host.
        ask: True to look up the user's ssh configuration on this machine, and keep its setting for unknown host keys.
            Pass False if the command will run on another machine, whose configuration is unknown.
    """
    there = "exec " + shlex.join(agent_command(python or remote.python))
    if remote.agent:
        return [*shlex.split(remote.agent), host, there]
    options = ["-x", "-T", *_PLAIN, *_KEEPALIVE]
    for option in _UNANSWERED:
        options += ["-o", option]
    if not ask or not _has_own_rule(host):
        options += ["-o", "StrictHostKeyChecking=accept-new"]
    if remote.port is not None:
        options += ["-p", str(remote.port)]
    if remote.identity_file is not None:
        options += ["-i", os.path.abspath(os.path.expanduser(remote.identity_file))]
    return ["ssh", *options, "--", host, there]


def ask_rules(hosts: Sequence[str]) -> None:
    """Query the ssh configuration for all hosts in parallel, because some configurations resolve names slowly."""
    with ThreadPoolExecutor(max_workers=16) as threads:
        list(threads.map(_has_own_rule, hosts))


@functools.cache
def _has_own_rule(host: str) -> bool:
    """Return True if the user's ssh configuration sets StrictHostKeyChecking, which Horovod must not override."""
    try:
        asked = subprocess.run(["ssh", "-G", "--", host], capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    found = re.search(r"^stricthostkeychecking (\S+)$", asked.stdout, re.MULTILINE | re.IGNORECASE)
    return found is not None and found[1].lower() != "ask"


@dataclass(frozen=True)
class Failure:
    """Reason why an agent did not start.

    Attributes:
        what: Description of the failure.
        advice: Advice to the user.
        again: True if the failure might be temporary.
    """

    what: str
    advice: str
    again: bool = False


# Messages of ssh and shells, matched in this order. ssh's messages are not localized.
_FAILURES: tuple[tuple[str, Failure], ...] = (
    (
        r"host key is known for",
        Failure(
            "its ssh host key is not known, and your ssh configuration asks for known ones (StrictHostKeyChecking yes)",
            "connect once by hand and check the key, or add it to ~/.ssh/known_hosts",
        ),
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed",
        Failure(
            "its ssh host key does not match the known one",
            "if the host was reinstalled, remove the old key with `ssh-keygen -R {host}`; otherwise an attacker "
            "may be intercepting the connection",
        ),
    ),
    (
        r"Permission denied|Too many authentication failures|no mutual signature|Load key|UNPROTECTED PRIVATE KEY",
        Failure(
            "ssh refuses this user or key",
            "`ssh {options}{host} true` has to work without a password: check user and key (-i, ssh-agent, "
            "~/.ssh/config)",
        ),
    ),
    (
        r"Could not resolve hostname|Name or service not known|Temporary failure in name resolution",
        Failure("its name cannot be resolved", "check the name in -H or the host file, /etc/hosts, ~/.ssh/config"),
    ),
    (
        r"Connection refused",
        Failure(
            "no ssh server answers there (connection refused)",
            "is sshd running, and on this port? -p gives another one",
            again=True,
        ),
    ),
    (
        r"timed out|No route to host|Network is unreachable",
        Failure(
            "it cannot be reached ({last})",
            "is it up, and may this machine reach its ssh port through the firewall?",
            again=True,
        ),
    ),
    (
        r"No module named '?(horovod|msgspec|zmq|cloudpickle)",
        Failure(
            "Python there has no horovod ({last})",
            "install the same version there, or name the right interpreter with --remote-python or `python=` in the "
            "host file",
        ),
    ),
    (
        r"Connection closed by|Connection reset by|kex_exchange_identification|Broken pipe",
        Failure("its ssh server closed the connection ({last})", "see its log; MaxStartups may be too low", again=True),
    ),
)


def explain(status: int, stderr: str, host: str, remote: Remote, python: str = "", greeting: str = "") -> Failure:
    """Explain why the command of `ssh_command` failed.

    Args:
        status: Exit status of the command.
        stderr: Text that the command wrote to stderr.
        host: Host to which the command connected.
        remote: Options for ssh.
        python: Python interpreter on that host.
        greeting: Text that the command wrote to stdout, without the agent's first message.
    """
    lines = [line.strip() for line in (greeting + "\n" + stderr).splitlines() if line.strip()]
    last = lines[-1] if lines else f"exit code {status}"
    options = "".join(
        [f"-p {remote.port} " if remote.port else "", f"-i {remote.identity_file} " * bool(remote.identity_file)]
    )
    if status in (126, 127):
        program = python or remote.python or sys.executable
        return Failure(
            f"Python does not start there: {last}",
            f"this job uses {program}; name another one with --remote-python or `python=` in the host file",
        )
    for pattern, known in _FAILURES:
        if re.search(pattern, stderr):
            return Failure(
                known.what.format(host=host, last=last), known.advice.format(host=host, options=options), known.again
            )
    advice = f"try `ssh {options}{host} true`"
    if lines:
        advice = "\n".join([f"{advice}; its complete output:", *lines])
    return Failure(f"the agent there did not start: {last}", advice)


def missing_ssh(error: OSError, host: str) -> Failure:
    """Explain why the ssh command cannot be run on this machine."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return Failure(
            f"the agent of host {host} cannot be started: {error.strerror}; this process may have {soft} open "
            "(ulimit -n), and needs more",
            "raise that limit",
        )
    return Failure(
        f"{error.filename or 'ssh'} cannot be run: {error.strerror}", "install an ssh client (openssh-client)"
    )


def encode_command(command: Sequence[str]) -> list[bytes]:
    """Encode the arguments of a command as bytes."""
    return [os.fsencode(word) for word in command]
