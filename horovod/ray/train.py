"""Horovod in Ray Train: workers, datasets, checkpoints and restarts after failures are Ray Train's, the job is ours.

    from horovod.ray.train import HorovodTrainer

    trainer = HorovodTrainer(train_loop, scaling_config=ray.train.ScalingConfig(num_workers=4))
    result = trainer.fit()

``hvd.rank()`` is Ray Train's world rank. ``HorovodConfig`` is a backend for any trainer that takes one.
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
from horovod.runner.resident import placing
from horovod.runner.resident import seat as seats
from horovod.runner.resident.residence import Residence
from horovod.runner.resident.seat import Seat

try:
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"horovod.ray.train needs Ray Train: pip install 'horovod[ray]' ({error})", name=error.name
    ) from None


@dataclass
class HorovodConfig(BackendConfig):
    """``nics``: network interfaces to be used, None: any. ``timeout_s``: s for a worker to reach Ray Train's
    controller."""

    nics: str | tuple[str, ...] | None = None
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        given.make(self.timeout_s, nics=self.nics)

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend."""
        return HorovodBackend

    def to_dict(self) -> dict[str, Any]:
        """For Ray's records."""
        return {"nics": self.nics, "timeout_s": self.timeout_s}


class HorovodBackend(Backend):
    """Makes ranks of the workers of Ray Train, in its controller's process."""

    def __init__(self) -> None:
        self._residence: Residence | None = None

    def on_start(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        """Each worker gets its seat. Raises RuntimeError naming one that does not fit to the others."""
        self._close()
        try:
            self._seat(worker_group, backend_config)
        except BaseException:
            self._close()
            raise

    def _seat(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        settings = given.make(backend_config.timeout_s, nics=backend_config.nics)
        told = worker_group.execute(described)
        residents, gpus = [one for one, _, _ in told], [own for _, _, own in told]
        if trouble := placing.misfit(residents):
            raise RuntimeError(trouble)
        made, shared = cluster.open_residence(
            settings.nics, {}, lambda rank, still: _gone(worker_group, rank) if still else None
        )
        self._residence = made
        slots = placing.seats(placing.hosts(residents))
        worker_group.execute(_sit, cluster.seats(made, slots, residents, gpus, shared, settings.timeout_s))

    def on_shutdown(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        """The workers leave the job."""
        try:
            worker_group.execute(_leave)
        finally:
            self._close()

    def _close(self) -> None:
        made, self._residence = self._residence, None
        if made is not None:
            made.close()


def _gone(worker_group: Any, rank: int) -> None:
    """Ray Train looks after its workers itself, but bears one that stands still for ten minutes. Of one that is killed
    it knows in no time."""
    with contextlib.suppress(Exception):  # it is gone by now, or the group is
        ray.kill(worker_group.get_workers()[rank].actor, no_restart=True)


def _sit(orders: list[Seat]) -> None:
    import ray.train

    seats.sit(orders[ray.train.get_context().get_world_rank()], raylet())


def _leave() -> None:
    with contextlib.suppress(Exception):  # it ends anyway
        basics.leave()
    seats.rise()


class HorovodTrainer(DataParallelTrainer):
    """``train_loop_per_worker`` on each of ``scaling_config.num_workers`` ranks, where it calls ``hvd.init()`` and, at
    its end, ``ray.train.report``. All other arguments are those of Ray's ``TorchTrainer``, and mean the same."""

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        horovod_config: HorovodConfig | None = None,
        **kwargs: Any,
    ) -> None:
        """Raises TypeError when ``horovod_config`` is none."""
        if horovod_config is not None and not isinstance(horovod_config, HorovodConfig):
            raise TypeError(f"horovod_config is {horovod_config!r}, accepted is a HorovodConfig")
        super().__init__(
            train_loop_per_worker,
            train_loop_config=None if train_loop_config is None else dict(train_loop_config),
            backend_config=horovod_config or HorovodConfig(),
            **kwargs,
        )
