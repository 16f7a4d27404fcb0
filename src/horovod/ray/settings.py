"""Settings of the Ray executors, and their validation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from horovod.common.contract.log import warn_user
from horovod.runner.base.arguments import ARGUMENTS, Names, integer, interfaces, seconds
from horovod.runner.elastic.limits import Limits, check_range

LONGEST = 1e7
"""Longest timeout in seconds, which workers accept as HOROVOD_ELASTIC_TIMEOUT."""

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_NO_SSH = "{} has no effect: Ray starts the workers, without ssh"


@dataclass
class Settings:
    """Executor settings, created by ``RayExecutor.create_settings`` or ``ElasticRayExecutor.create_settings``.

    ``min_num_proc`` and all attributes after it are only for elastic jobs.

    Attributes:
        timeout_s: Seconds within which workers must start and reach the driver.
        placement_group_timeout_s: Seconds within which Ray must reserve the resources.
        nics: Network interfaces to use. If empty, any interface can be used.
        strategy: Ray's placement strategy.
        discovery: Object that finds hosts, used with ``override_discovery=False``.
    """

    timeout_s: float = 30.0
    placement_group_timeout_s: float = 100.0
    nics: tuple[str, ...] = ()
    strategy: str = "PACK"
    min_num_proc: int = 1
    max_num_proc: int | None = None
    num_proc: int | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[float, float] | None = None
    elastic_timeout: float = 600.0
    discovery: Any = None
    verbose: int = 1
    names: Names = ARGUMENTS
    """Names of the settings in messages, which differ between executors."""

    def limits(self) -> Limits:
        """Return the limits of an elastic job. Raises ValueError if they are invalid."""
        least, maximum = self.min_num_proc, self.max_num_proc
        start = least if self.num_proc is None else integer("num_proc", self.num_proc, 1)
        if self.reset_limit is not None:
            integer("reset_limit", self.reset_limit, 0)
        seconds("elastic_timeout", self.elastic_timeout, LONGEST)
        check_range(self.cooldown_range)
        # Actors start slowly, especially the first actor on a node. Wait for all of them, because a late worker would
        # change the rank assignment.
        gather = min(self.timeout_s, self.elastic_timeout / 2)
        return Limits(start, least, maximum, self.reset_limit, self.elastic_timeout, gather=gather, names=self.names)


def make(
    timeout_s: float,
    placement_group_timeout_s: float = 100.0,
    nics: Collection[str] | str | None = None,
    ssh: Mapping[str, Any] | None = None,
    strategy: str = "PACK",
) -> Settings:
    """Create settings from validated arguments.

    Args:
        timeout_s: See ``Settings``.
        placement_group_timeout_s: See ``Settings``.
        nics: Network interfaces to use. Default: any.
        ssh: Arguments about ssh. They are ignored, with a warning if they are not None.
        strategy: See ``Settings``.

    Returns:
        The settings.

    Raises:
        ValueError: If an argument is invalid.
    """
    for name, value in (ssh or {}).items():
        if value is not None:
            warn_user(_NO_SSH.format(f"{name}={value!r}" if name != "ssh_str" else name))
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    return Settings(
        timeout_s=seconds("timeout_s", timeout_s, LONGEST),
        placement_group_timeout_s=seconds("placement_group_timeout_s", placement_group_timeout_s, LONGEST),
        nics=tuple(interfaces("nics", nics)),
        strategy=strategy,
    )


def needs(of: str, cpus: Any, use_gpu: bool, gpus: Any) -> tuple[int, int]:
    """Return the number of CPUs and the number of GPUs per worker or slot.

    ``of`` is "worker" or "slot"; error messages use it in the names of the arguments.

    Raises:
        ValueError: If the arguments are invalid or contradict each other.
    """
    if not use_gpu and gpus:
        raise ValueError(
            f"use_gpu must be True with gpus_per_{of}={gpus!r}, got False; set use_gpu=True or leave both out"
        )
    least = 0 if use_gpu else 1
    has = integer(f"cpus_per_{of}", cpus, least)
    return has, 0 if not use_gpu else 1 if gpus is None else integer(f"gpus_per_{of}", gpus, 1)
