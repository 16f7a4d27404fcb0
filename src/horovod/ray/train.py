"""Horovod in Ray Train. Ray Train manages workers, data sets, checkpoints, and restarts after failures.

``hvd.rank()`` is Ray Train's world rank. ``HorovodConfig`` can be used with any trainer that has ``backend_config``.

    from horovod.ray.train import HorovodTrainer

    trainer = HorovodTrainer(train_loop, scaling_config=ray.train.ScalingConfig(num_workers=4))
    result = trainer.fit()
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from horovod.common import basics
from horovod.ray import cluster
from horovod.ray import settings as given
from horovod.ray.worker import described, raylet
from horovod.runner.external_workers import assignment
from horovod.runner.external_workers.assignment import Assignment
from horovod.runner.external_workers.workers import ExternalWorkers

try:
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"horovod.ray.train needs Ray Train: pip install 'horovod[ray]' ({error})", name=error.name
    ) from None


@dataclass
class HorovodConfig(BackendConfig):
    """Configuration of Ray Train's backend.

    Attributes:
        nics: Network interfaces to use, or None for any.
        timeout_s: Seconds for a worker to reach Ray Train's controller.
    """

    nics: str | tuple[str, ...] | None = None
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        given.make(self.timeout_s, nics=self.nics)

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend, which is HorovodBackend."""
        return HorovodBackend

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as a dict, which Ray stores with the run."""
        return {"nics": self.nics, "timeout_s": self.timeout_s}


class HorovodBackend(Backend):
    """Backend that makes Ray Train's workers join a Horovod job. It runs in the controller's process."""

    def __init__(self) -> None:
        self._servers: ExternalWorkers | None = None

    def on_start(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        """Assign ranks to the workers. Raises RuntimeError if the versions or settings of the workers differ."""
        self._close()
        try:
            self._assign(worker_group, backend_config)
        except BaseException:
            self._close()
            raise

    def _assign(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        settings = given.make(backend_config.timeout_s, nics=backend_config.nics)
        descriptions = worker_group.execute(described)
        workers, gpus = [one for one, _, _ in descriptions], [own for _, _, own in descriptions]
        if trouble := assignment.misfit(workers):
            raise RuntimeError(trouble)
        made, shared = cluster.open_servers(
            settings.nics, {}, lambda rank, still: _raise_lost(worker_group, rank) if still else None
        )
        self._servers = made
        slots = assignment.slots(assignment.hosts(workers))
        worker_group.execute(_join, cluster.assignments(made, slots, workers, gpus, shared, settings.timeout_s))

    def on_shutdown(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        """Make all workers leave the job, and then stop the job."""
        try:
            worker_group.execute(_leave)
        finally:
            self._close()

    def _close(self) -> None:
        made, self._servers = self._servers, None
        if made is not None:
            made.close()


def _raise_lost(worker_group: Any, rank: int) -> None:
    """Kill a suspended worker. Otherwise, Ray Train would notice it only after ten minutes."""
    with contextlib.suppress(Exception):  # Ignore errors, because the worker or its group may already have exited.
        ray.kill(worker_group.get_workers()[rank].actor, no_restart=True)


def _join(orders: list[Assignment]) -> None:
    import ray.train

    assignment.join(orders[ray.train.get_context().get_world_rank()], raylet())


def _leave() -> None:
    with contextlib.suppress(Exception):  # Ignore errors while leaving the job, because the worker exits anyway.
        basics.leave()
    assignment.leave()


class HorovodTrainer(DataParallelTrainer):
    """Ray Train trainer that calls ``train_loop_per_worker`` on ``scaling_config.num_workers`` ranks.

    The function must call ``hvd.init()`` and, at its end, ``ray.train.report``. All other arguments are the same as
    those of Ray's ``TorchTrainer``.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        horovod_config: HorovodConfig | None = None,
        **kwargs: Any,
    ) -> None:
        """Create a trainer with Horovod's backend.

        Args:
            train_loop_per_worker: Function that each rank calls.
            train_loop_config: Argument of the function, if it takes one.
            horovod_config: Configuration of the backend. Default: ``HorovodConfig()``.
            **kwargs: Additional arguments of Ray's data-parallel trainers, such as ``scaling_config``.

        Raises:
            TypeError: If ``horovod_config`` has the wrong type.
        """
        if horovod_config is not None and not isinstance(horovod_config, HorovodConfig):
            raise TypeError(f"horovod_config must be a HorovodConfig, got {horovod_config!r}")
        super().__init__(
            train_loop_per_worker,
            train_loop_config=None if train_loop_config is None else dict(train_loop_config),
            backend_config=horovod_config or HorovodConfig(),
            **kwargs,
        )
