"""The workers' environment: what passes from the launcher's own, what the job adds, what one worker gets. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping

from horovod.common.contract.worker_env import WorkerEnv
from horovod.runner.plan.hosts import Slot

# Shell functions, the shell's memory, a device choice that would differ per host, keys of other launchers and jobs,
# descriptors of a job that this launcher itself may be a worker of, and the port of its page, which a launcher among
# its workers could not have too.
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

# What says something about one machine, login or terminal, and is wrong or useless on another: there the worker gets
# the values of that host's own login, if it has any. LD_PRELOAD is not among them: it loads allocators that people want
# everywhere, and where the file is missing the system's loader says so and goes on.
HOSTS_OWN = (
    # the machine and the user's place on it
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
    # which of the machines of a training service it is
    "CLUSTER_SPEC",
    "SM_CURRENT_*",
    "SM_RESOURCE_CONFIG",
    # the shell that the launcher was started from
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
    # screen and terminal
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

# Says that a shell is the first one of a login by ssh: bash then reads ~/.bashrc even for `bash -c` and whatever that
# prints would come out of the workers of other hosts only. Rank 0's host has none of it, so no host has.
OF_THE_SESSION = ("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SHLVL")

# Passes with --env-allow too: without it no program starts as the user means, and settings are not secrets.
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
    """The part of the launcher's environment that reaches the workers.

    `allow` and `deny` are the user's patterns (`*`, `?` and `[...]` as in file names): with `allow`, only what matches
    one of them or NEEDED passes; what matches `deny` does not. `remote`: for another machine, so HOSTS_OWN stays here,
    except names that stand in `allow` in full. NOT_PASSED_ON never passes, nor does Ray's debugger.
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
    """Is it the debugger that `ray.init` has set for its own process? Outside of Ray's processes it fails."""
    return name == "PYTHONBREAKPOINT" and value.startswith("ray.util.")


def of_host(environ: Mapping[str, str], deny: Iterable[str] = ()) -> dict[str, str]:
    """What a worker on another machine gets from there (`environ`: the agent's), where nothing is passed on."""
    barred = (*OF_THE_SESSION, *deny)
    return {name: value for name, value in environ.items() if _matches(name, HOSTS_OWN) and not _matches(name, barred)}


def of_agent(environ: Mapping[str, str], deny: Iterable[str] = ()) -> dict[str, str]:
    """What a worker gets from its agent (`environ`: its) where that was started in an environment made for the worker.
    There a choice of devices is meant for it, too."""
    barred = (*(name for name in NOT_PASSED_ON if "CUDA" not in name), *deny)
    return {name: value for name, value in environ.items() if not _matches(name, barred)}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def job_environment(
    environ: Mapping[str, str],
    given: Mapping[str, str],
    interface: str | None = None,
    *,
    allow: Collection[str] = (),
    deny: Collection[str] = (),
    remote: bool = False,
) -> dict[str, str]:
    """What all workers of a host share: what passes on of the launcher's environment (see `passed_on`), changed by the
    variables that flags have set (`given`).

    `interface` is used when neither names one.
    PYTHONUNBUFFERED is set unless the user has: output should show when it is written, not when a buffer is full.
    """
    defaults = {"PYTHONUNBUFFERED": "1"}
    if interface is not None:
        defaults.update({"HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": interface})
    return {**defaults, **passed_on(environ, allow, deny, remote), **given}


def omp_threads(cores: int, local_size: int) -> int:
    """Threads per worker so that the workers of one host do not compete for its cores."""
    return max(1, cores // local_size)


def worker_environment(slot: Slot, address: str, port: int) -> dict[str, str]:
    """The variables of one worker (the contract of horovod.common.contract.worker_env, without the key)."""
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
