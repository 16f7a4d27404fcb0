"""Worker environment, which consists of variables from the launcher and variables for each worker."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence

from horovod.common.contract.worker_env import TORCH_PLACE, WorkerEnv
from horovod.runner.plan.hosts import Slot

# These variables are never passed on: shell functions and shell state, a device selection that would differ between
# hosts, keys of other launchers and jobs, descriptors of an outer job, and the dashboard's port, which an inner
# launcher cannot also use.
NOT_PASSED_ON = (
    "BASH_FUNC_*",
    "OLDPWD",
    "*CUDA_VISIBLE_DEVICES",
    "_HOROVOD_SECRET_KEY",
    "HOROVOD_DASHBOARD_PORT",
    "HOROVOD_JOB_KEY",
    "HOROVOD_KEY_FD",
    "HOROVOD_KEY_FILE",
    "HOROVOD_RANK_PROCESS",
    "HOROVOD_REPORT_PIPE",
    "HOROVOD_RUN_FUNCTION_FD",
    "HOROVOD_RUN_RESULT_FD",
    "HOROVOD_WORKER",
)

# These variables describe one machine, login or terminal, so they are wrong on another machine. A worker on another
# machine gets the values of that host's own login. LD_PRELOAD is not included, because it loads allocators that are
# wanted on all hosts. If the file is missing there, the dynamic loader only prints a message.
HOSTS_OWN = (
    # Machine, account
    "HOSTNAME",
    "HOST",
    "HOME",
    "USER",
    "LOGNAME",
    "MAIL",
    "SHELL",
    "TMPDIR",
    "TMP",
    "TEMP",
    "PWD",
    # Training service
    "CLUSTER_SPEC",
    "SM_CURRENT_*",
    "SM_RESOURCE_CONFIG",
    # Launching shell
    "SHLVL",
    "_",
    # the login
    "SSH_*",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_*",
    "XDG_SEAT*",
    "XDG_VTNR",
    "DBUS_*",
    "KRB5CCNAME",
    "GPG_AGENT_INFO",
    "GPG_TTY",
    "SUDO_*",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
    # Screen, terminal
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "SESSION_MANAGER",
    "WINDOWID",
    "TERM_PROGRAM*",
    "TERM_SESSION_ID",
    "VTE_VERSION",
    "TMUX*",
    "STY",
    "VSCODE_*",
)

# If these variables are present, as after an ssh login, bash reads ~/.bashrc even for `bash -c`. Workers on other hosts
# would print the output of this file. Rank 0's host does not have these variables, so no host gets them.
OF_THE_SESSION = ("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SHLVL")

# These variables are passed on even with --env-allow: many programs need them, and Horovod's settings are not secret.
NEEDED = (
    "HOROVOD_*",
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
)


def passed_on(
    environ: Mapping[str, str], allow: Collection[str] = (), deny: Collection[str] = (), remote: bool = False
) -> dict[str, str]:
    """Return the launcher's environment variables that are passed to workers.

    Variables in NOT_PASSED_ON and those of Ray's debugger are never included.

    Args:
        environ: The launcher's environment.
        allow: User-supplied patterns, with `*`, `?` and `[...]` as in file names. If there are any, only variables that
            match one of them or NEEDED are included.
        deny: User-supplied patterns. Variables that match one of them are not included.
        remote: True for workers on another machine. Variables in HOSTS_OWN are included only if `allow` contains their
            full names.
    """
    barred = (*NOT_PASSED_ON, *deny)
    wanted = (*allow, *NEEDED) if allow else ("*",)
    return {
        name: value
        for name, value in environ.items()
        if _matches(name, wanted)
        and not _matches(name, barred)
        and not _of_ray(name, value)
        and not (remote and name not in allow and _matches(name, HOSTS_OWN))
    }


def _of_ray(name: str, value: str) -> bool:
    """Return True if the variable selects Ray's debugger, which works only in the process that called `ray.init`."""
    return name == "PYTHONBREAKPOINT" and value.startswith("ray.util.")


def of_host(environ: Mapping[str, str], deny: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that a worker on another machine takes from the environment of its agent."""
    barred = (*OF_THE_SESSION, *deny)
    return {name: value for name, value in environ.items() if _matches(name, HOSTS_OWN) and not _matches(name, barred)}


def of_agent(environ: Mapping[str, str], deny: Iterable[str] = ()) -> dict[str, str]:
    """Return the agent's variables that a worker inherits if the agent was started for that worker alone.

    They include CUDA_VISIBLE_DEVICES, because these devices were selected for the worker.
    """
    barred = (*(name for name in NOT_PASSED_ON if "CUDA" not in name), *deny)
    return {name: value for name, value in environ.items() if not _matches(name, barred)}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def job_environment(
    environ: Mapping[str, str],
    variables: Mapping[str, str],
    interface: str | None = None,
    *,
    allow: Collection[str] = (),
    deny: Collection[str] = (),
    remote: bool = False,
) -> dict[str, str]:
    """Return the environment variables that all workers on a host share.

    PYTHONUNBUFFERED is set unless the user has set it, so that output appears as soon as it is written.

    Args:
        environ: The launcher's environment, as in `passed_on`.
        variables: Variables set by command-line flags, which take precedence.
        interface: Network interface to use if neither `environ` nor `variables` contains one.
        allow: See `passed_on`.
        deny: See `passed_on`.
        remote: See `passed_on`.
    """
    defaults = {"PYTHONUNBUFFERED": "1"}
    if interface is not None:
        defaults.update({"HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": interface})
    return {**defaults, **passed_on(environ, allow, deny, remote), **variables}


def omp_threads(cores: int, local_size: int) -> int:
    """Return the number of threads per worker that avoids oversubscribing the host's cores."""
    return max(1, cores // local_size)


def worker_environment(slot: Slot, address: str, port: int) -> dict[str, str]:
    """Return the variables of one worker that `horovod.common.contract.worker_env` defines, without the key."""
    return WorkerEnv(
        rank=slot.rank,
        size=slot.size,
        local_rank=slot.local_rank,
        local_size=slot.local_size,
        cross_rank=slot.cross_rank,
        cross_size=slot.cross_size,
        hostname=slot.hostname,
        rendezvous_addr=address,
        rendezvous_port=port,
    ).to_environ()


TORCH_LOOPBACK = "127.0.0.1"  # Value of MASTER_ADDR for jobs on one machine


def torch_master(address: str, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that tell workers the address on which rank 0 listens.

    Args:
        address: Address of rank 0's host that all hosts can reach.
        port: Port on that host on which rank 0 can listen.
        environ: Environment variables that the workers get from the user. MASTER_ADDR and MASTER_PORT in `environ` take
            precedence, unless the launcher is a rank of another job and they belong to that job.
    """
    made = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    if "HOROVOD_RANK" in environ:
        return made
    return {name: environ.get(name) or value for name, value in made.items()}


def torch_variables(slot: Slot, hosts: Sequence[str], master: Mapping[str, str]) -> dict[str, str]:
    """Return the torch.distributed variables of one worker.

    Args:
        slot: Slot of the worker.
        hosts: Host of each rank.
        master: Result of ``torch_master``.
    """
    node = list(dict.fromkeys(hosts)).index(slot.hostname)
    place = (slot.rank, slot.size, slot.local_rank, slot.local_size, node)
    return dict(zip(TORCH_PLACE, map(str, place), strict=True)) | dict(master)
