"""``ElasticRayExecutor``, and what finds hosts for it. What runs: ``members``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from horovod.ray import settings as given
from horovod.ray.calls import Callback
from horovod.ray.discovery import RayHostDiscovery, TestDiscovery
from horovod.ray.members import ElasticJob
from horovod.ray.settings import Settings
from horovod.runner.base.arguments import integer, renamed

__all__ = ["ElasticRayExecutor", "RayHostDiscovery", "TestDiscovery"]

_LEAST = 1


class ElasticRayExecutor:
    """An elastic job on Ray's cluster: as many workers as it has room for, at least and at most as many as the settings
    say."""

    def __init__(
        self,
        settings: Settings,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        override_discovery: bool = True,
    ) -> None:
        """``settings``: of ``create_settings``; each worker has ``cpus_per_slot`` CPUs and, with ``use_gpu``,
        ``gpus_per_slot`` GPUs (1), which it alone sees. ``env_vars``: variables for the workers.
        ``override_discovery`` False: ``settings.discovery`` finds hosts, not ``RayHostDiscovery``. Raises ValueError
        naming what is wrong."""
        if not isinstance(settings, Settings):
            raise TypeError(f"settings is {settings!r}, accepted is what ElasticRayExecutor.create_settings() returns")
        cpus, gpus = given.needs("slot", cpus_per_slot, use_gpu, gpus_per_slot)
        settings = dataclasses.replace(settings)
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus, gpus or 1)
        self._job = ElasticJob(settings, cpus, gpus)
        self._variables = {str(name): str(value) for name, value in (env_vars or {}).items()}

    @classmethod
    def create_settings(
        cls,
        min_num_proc: int = _LEAST,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Collection[str] | str | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        *,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        **kw: Any,
    ) -> Settings:
        """``min_num_proc``, ``max_num_proc`` (None: any number): workers; ``reset_limit``: how often they may change,
        ``elastic_timeout``: s without enough of them. ``timeout_s``: s for a worker to reach this program. Beside these
        ``num_proc`` (to begin with), ``cooldown_range``, ``discovery`` and ``verbose`` (0: say nothing). ``min_np`` and
        ``max_np`` are old names; where the new one says something else than its default, it counts. What begins with
        ``ssh`` has no effect, neither has ``placement_group_timeout_s``: such jobs are in no placement group. Raises
        ValueError and TypeError naming what is wrong."""
        for old, new, value in (("min_np", "min_num_proc", min_np), ("max_np", "max_num_proc", max_np)):
            renamed(old, new, value)
        unknown = sorted(kw.keys() - {"num_proc", "cooldown_range", "discovery", "verbose"})
        if unknown:
            raise TypeError(
                f"{', '.join(unknown)} is given, accepted beside the named arguments are num_proc, cooldown_range, "
                "discovery and verbose"
            )
        ssh = {"ssh_identity_file": ssh_identity_file, "ssh_str": ssh_str}
        made = given.make(timeout_s, placement_group_timeout_s, nics, ssh)
        least = min_num_proc if min_np is None or min_num_proc != _LEAST else min_np
        made.min_num_proc = integer("min_num_proc", least, 1)
        most = max_np if max_num_proc is None else max_num_proc
        made.max_num_proc = None if most is None else integer("max_num_proc", most, 1)
        made.reset_limit, made.elastic_timeout = reset_limit, elastic_timeout
        for name, value in kw.items():
            setattr(made, name, value)
        made.limits()
        return made

    def start(self) -> None:
        """Looks whether this program is connected to Ray. Raises RuntimeError when it is not."""
        self._job.prepare(self._variables)

    def run(self, worker_fn: Callable[[], Any], callbacks: Sequence[Callback] | None = None) -> list[Any]:
        """``worker_fn()`` in each worker, which has its training in a function that ``hvd.elastic.run`` calls; the
        results of the last members, by rank. ``callbacks``: as of ``RayExecutor.run``.

        Raises WorkerError, a RuntimeError, when the job fails: too few workers for too long, too many changes, or none
        that holds the state of the training.
        """
        if not callable(worker_fn):
            raise TypeError(f"worker_fn is {worker_fn!r}, accepted is a function")
        return self._job.run(lambda _: worker_fn(), callbacks)
