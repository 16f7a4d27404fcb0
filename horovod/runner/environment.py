"""The workers' environment: what passes from the launcher's own, what the job adds, what one worker gets. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from horovod.common.worker_env import WorkerEnv
from horovod.runner.hosts import Slot

# Shell functions, the shell's memory, a device choice that would differ per host, a key of another launcher, and
# descriptors of a job that this launcher itself may be a worker of.
NOT_PASSED_ON = (
    "BASH_FUNC_*",
    "OLDPWD",
    "*CUDA_VISIBLE_DEVICES",
    "_HOROVOD_SECRET_KEY",
    "HOROVOD_KEY_FD",
    "HOROVOD_KEY_FILE",
    "HOROVOD_RUN_FUNCTION_FD",
    "HOROVOD_RUN_RESULT_FD",
)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the launcher's environment that reaches the workers."""
    return {
        name: value
        for name, value in environ.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in NOT_PASSED_ON)
    }


def job_environment(
    environ: Mapping[str, str], given: Mapping[str, str], interface: str | None = None
) -> dict[str, str]:
    """What all workers share: the launcher's environment, changed by the variables that flags have set (`given`).

    `interface` is used when neither names one.
    PYTHONUNBUFFERED is set unless the user has: output should show when it is written, not when a buffer is full.
    """
    defaults = {"PYTHONUNBUFFERED": "1"}
    if interface is not None:
        defaults.update({"HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": interface})
    return {**defaults, **passed_on(environ), **given}


def omp_threads(cores: int, local_size: int) -> int:
    """Threads per worker so that the workers of one host do not compete for its cores."""
    return max(1, cores // local_size)


def worker_environment(slot: Slot, address: str, port: int) -> dict[str, str]:
    """The variables of one worker (the contract of horovod.common.worker_env, without the key)."""
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
