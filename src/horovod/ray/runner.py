"""The classes ``RayExecutor`` and ``BaseHorovodWorker``, at the import path that the original Horovod uses."""

from typing import Any

from horovod.ray.executor import RayExecutor
from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "RayExecutor"]


def __getattr__(name: str) -> Any:
    if name == "Coordinator":
        raise ImportError(
            "horovod.ray.runner has no Coordinator, with which older versions of Ray Train (ray.train.horovod) set "
            "ranks up; horovod.ray.train.HorovodTrainer takes its place"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
