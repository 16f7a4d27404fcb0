"""Which variables reach the workers, and who this process is by them."""

from __future__ import annotations

import os
import re

from horovod.common import launchers
from horovod.common.contract.settings import LOG_LEVELS
from horovod.runner.plan.environment import NOT_PASSED_ON
from horovod.runner.reach.ssh import AGENT_VARIABLE

LOG_LEVEL_STR = [level.upper() for level in reversed(LOG_LEVELS)]
"""The names of the log levels, the most severe first."""
IGNORE_REGEXES = {pattern.replace("*", ".*") for pattern in NOT_PASSED_ON}
"""Variables that never pass from the launcher to the workers."""
KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"


def is_exportable(v: str) -> bool:
    """Does a variable of this name pass from the launcher to the workers?"""
    return not any(re.fullmatch(pattern, v) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and size by the variables of horovodrun, or of another launcher that has started this process; (0, 1)
    without any. Raises ValueError naming a variable that is no number.
    """
    place = launchers.find(os.environ)
    if place is not None:
        return place.rank, place.size
    rank, size = (_number(name, default) for name, default in (("HOROVOD_RANK", 0), ("HOROVOD_SIZE", 1)))
    return rank, size


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if text and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name} is {text!r}, accepted is an integer of 0 or more")
    return int(text) if text else default


def is_kubeflow_mpi() -> bool:
    """Does Kubernetes' MPI operator name its own way into the pods?"""
    return os.environ.get(AGENT_VARIABLE) == KUBEFLOW_MPI_EXEC
