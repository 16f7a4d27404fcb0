"""Horovod on Ray, where the ranks are actors. An actor can call any number of functions.

``RayExecutor(min_workers=...)`` and ``ElasticRayExecutor`` add and remove workers together with the cluster's nodes.
``horovod.ray.tune`` is for Ray Tune, and ``horovod.ray.train`` is for Ray Train.

    import ray
    from horovod.ray import RayExecutor

    ray.init()
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=30), num_workers=4)
    executor.start()
    print(executor.run(train, args=[0.1]))
    executor.shutdown()
"""

import importlib
from typing import TYPE_CHECKING, Any

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ModuleNotFoundError(
        "horovod.ray needs Ray, which is not installed: pip install 'horovod[ray]'", name="ray"
    ) from None

if TYPE_CHECKING:
    from horovod.ray.elastic import ElasticRayExecutor
    from horovod.ray.executor import RayExecutor
    from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]

_HOMES = {"BaseHorovodWorker": "worker", "ElasticRayExecutor": "elastic", "RayExecutor": "executor"}


def __getattr__(name: str) -> Any:
    # Import on demand, because importing the driver's modules would slow down the start of each worker.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
