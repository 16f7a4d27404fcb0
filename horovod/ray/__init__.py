"""Horovod on Ray: ranks are actors, placed by Ray's scheduler, in which functions are called as often as one likes.

    import ray
    from horovod.ray import RayExecutor

    ray.init()
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=30), num_workers=4)
    executor.start()
    print(executor.run(train, args=[0.1]))
    executor.shutdown()

``RayExecutor`` with ``min_workers``, and ``ElasticRayExecutor``: workers come and go with the cluster's nodes. For Ray
Tune: ``horovod.ray.tune``, for Ray Train: ``horovod.ray.train``.
"""

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ModuleNotFoundError(
        "horovod.ray needs Ray, which is not installed: pip install 'horovod[ray]'", name="ray"
    ) from None

from horovod.ray.elastic import ElasticRayExecutor
from horovod.ray.executor import RayExecutor
from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
