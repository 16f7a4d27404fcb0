"""Functions that select environment variables for workers and detect a process's rank and size."""

from __future__ import annotations

import os
import re

from horovod.common import launchers
from horovod.common.contract.settings import LOG_LEVELS
from horovod.runner.plan.environment import NOT_PASSED_ON
from horovod.runner.remote.ssh import AGENT_VARIABLE

LOG_LEVEL_STR = [level.upper() for level in reversed(LOG_LEVELS)]
"""Names of the log levels, most severe first."""
IGNORE_REGEXES = {pattern.replace("*", ".*") for pattern in NOT_PASSED_ON}
"""Patterns of variables that the launcher never passes to the workers."""
KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"


def is_exportable(v: str) -> bool:
    """Return True if the launcher passes the variable with this name to the workers."""
    return not any(re.fullmatch(pattern, v) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Return (rank, size) from the variables of horovodrun or another launcher. The default is (0, 1).

    Raises:
        ValueError: If a variable is not an integer.
    """
    place = launchers.find(os.environ)
    if place is not None:
        return place.rank, place.size
    rank, size = (_number(name, default) for name, default in (("HOROVOD_RANK", 0), ("HOROVOD_SIZE", 1)))
    return rank, size


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if text and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name} must be an integer of 0 or more, got {text!r}")
    return int(text) if text else default


def is_kubeflow_mpi() -> bool:
    """Return True if this process was started by Kubernetes' MPI operator."""
    return os.environ.get(AGENT_VARIABLE) == KUBEFLOW_MPI_EXEC
