"""Class ``ElasticRayExecutor`` and its host discovery. The module ``members`` runs the jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from horovod.ray import settings as given
from horovod.ray.calls import Callback
from horovod.ray.cluster import RayHostDiscovery, TestDiscovery
from horovod.ray.members import ElasticJob
from horovod.ray.settings import Settings
from horovod.runner.base.arguments import integer, renamed

__all__ = ["ElasticRayExecutor", "RayHostDiscovery", "TestDiscovery"]

_LEAST = 1


class ElasticRayExecutor:
    """Executor for elastic jobs on the Ray cluster.

    It uses as many workers as fit, within the limits of the settings.
    """

    def __init__(
        self,
        settings: Settings,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        override_discovery: bool = True,
    ) -> None:
        """Create an executor for elastic jobs.

        Args:
            settings: Result of ``create_settings``.
            use_gpu: True to give GPUs to workers.
            cpus_per_slot: Number of CPUs of each worker.
            gpus_per_slot: Number of GPUs of each worker with ``use_gpu``. They are visible only to this worker.
                Default: 1.
            env_vars: Environment variables for the workers.
            override_discovery: True to find hosts with ``RayHostDiscovery``, False to use ``settings.discovery``.

        Raises:
            ValueError: If an argument is invalid.
            TypeError: If ``settings`` has the wrong type.
        """
        if not isinstance(settings, Settings):
            raise TypeError(f"settings must come from ElasticRayExecutor.create_settings(), got {settings!r}")
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
        """Create settings for the executor.

        Args:
            min_num_proc: Minimum number of workers.
            max_num_proc: Maximum number of workers. Default: no limit.
            reset_limit: Maximum number of times that the set of workers can change. Default: no limit.
            elastic_timeout: The job ends after this many seconds without enough workers.
            timeout_s: Seconds for a worker to reach this program.
            ssh_identity_file: Ignored.
            nics: Network interfaces to use. Default: any.
            min_np: Old name of ``min_num_proc``. It is used if ``min_num_proc`` has its default value.
            max_np: Old name of ``max_num_proc``. It is used if ``max_num_proc`` has its default value.
            ssh_str: Ignored.
            placement_group_timeout_s: Ignored, because elastic jobs do not use placement groups.
            **kw: ``num_proc`` (initial number of workers), ``cooldown_range``, ``discovery``, ``verbose`` (0 disables
                messages).

        Returns:
            The settings.

        Raises:
            ValueError: If an argument has an invalid value.
            TypeError: If an argument has the wrong type or is unknown.
        """
        for old, new, value in (("min_np", "min_num_proc", min_np), ("max_np", "max_num_proc", max_np)):
            renamed(old, new, value)
        unknown = sorted(kw.keys() - {"num_proc", "cooldown_range", "discovery", "verbose"})
        if unknown:
            raise TypeError(
                f"further arguments must be num_proc, cooldown_range, discovery or verbose, got {', '.join(unknown)}"
            )
        ssh = {"ssh_identity_file": ssh_identity_file, "ssh_str": ssh_str}
        settings = given.make(timeout_s, placement_group_timeout_s, nics, ssh)
        least = min_num_proc if min_np is None or min_num_proc != _LEAST else min_np
        settings.min_num_proc = integer("min_num_proc", least, 1)
        most = max_np if max_num_proc is None else max_num_proc
        settings.max_num_proc = None if most is None else integer("max_num_proc", most, 1)
        settings.reset_limit, settings.elastic_timeout = reset_limit, elastic_timeout
        for name, value in kw.items():
            setattr(settings, name, value)
        settings.limits()
        return settings

    def start(self) -> None:
        """Prepare the executor for ``run``. Raises RuntimeError if this program is not connected to Ray."""
        self._job.prepare(self._variables)

    def run(self, worker_fn: Callable[[], Any], callbacks: Sequence[Callback] | None = None) -> list[Any]:
        """Call ``worker_fn()`` in each worker.

        Args:
            worker_fn: Function that calls a training function wrapped by ``hvd.elastic.run``.
            callbacks: Functions to call with the messages of ``ray_logger.log``. See ``RayExecutor.run``.

        Returns:
            Results of the workers at the end of the job, by rank.

        Raises:
            WorkerError: If the job fails, because there are too few workers for too long, too many changes, or no
                worker with the training state. WorkerError is a RuntimeError.
            TypeError: If ``worker_fn`` is not a function.
        """
        if not callable(worker_fn):
            raise TypeError(f"worker_fn must be a function, got {worker_fn!r}")
        return self._job.run(lambda _: worker_fn(), callbacks)
