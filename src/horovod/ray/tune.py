"""Horovod in Ray Tune, where each trial is a job of several ranks.

``trainable`` converts a training function to a trainable for Ray Tune, and ``report`` reports a result of the trial.

from horovod.ray.tune import report, trainable

def train(config):
    hvd.init()
    ...
    report({"loss": loss})

tune.Tuner(trainable(train, num_workers=2), param_space={"lr": tune.grid_search([0.01, 0.1])}).fit()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray import tune

from horovod.ray import settings as given
from horovod.ray import strategy
from horovod.ray.executor import RayExecutor
from horovod.ray.ray_logger import log as report
from horovod.runner.base.arguments import integer

__all__ = ["report", "trainable"]


def trainable(
    func: Callable[[dict[str, Any]], Any],
    num_workers: int,
    cpus_per_worker: int = 1,
    use_gpu: bool = False,
    gpus_per_worker: int | None = None,
    timeout_s: float = 30,
) -> Any:
    """Return a trainable for ``tune.Tuner`` that runs ``func(config)`` on several ranks in each trial.

    Each trial has its own placement group. A dict that rank 0 passes to ``report`` becomes a result of the trial. Calls
    of ``report`` on other ranks have no effect. If a rank fails, the trial fails with its error.

    Args:
        func: Function that takes a trial's config.
        num_workers: Number of ranks per trial.
        cpus_per_worker: Number of CPUs of each rank.
        use_gpu: True to give GPUs to ranks.
        gpus_per_worker: Number of GPUs of each rank with ``use_gpu``. Default: 1.
        timeout_s: Seconds for the ranks to start.

    Raises:
        ValueError: If an argument is invalid.
        TypeError: If ``func`` is not callable.
    """
    if not callable(func):
        raise TypeError(f"func must be a function of a trial's config, got {func!r}")
    bundle = strategy.resources(*given.needs("worker", cpus_per_worker, use_gpu, gpus_per_worker))
    size = integer("num_workers", num_workers, 1)
    settings = RayExecutor.create_settings(timeout_s)

    def trial(config: dict[str, Any]) -> None:
        executor = RayExecutor(settings, size, None, 1, cpus_per_worker, use_gpu, gpus_per_worker)
        executor.start()
        try:
            executor.run(func, [config], callbacks=[tune.report])
        finally:
            executor.shutdown()

    trial.__name__ = getattr(func, "__name__", "trial")  # Tune shows this name in its results.
    # The trial itself needs no resources, because it only waits for its ranks. Its bundle is the first one.
    return tune.with_resources(trial, tune.PlacementGroupFactory([{}, *[bundle] * size]))
