"""Host discovery for elastic jobs, under the import path of the original Horovod."""

from typing import Any

from horovod.ray.cluster import RayHostDiscovery, TestDiscovery

__all__ = ["RayHostDiscovery", "TestDiscovery"]


def __getattr__(name: str) -> Any:
    if name in ("ElasticAdapter", "ElasticParams"):
        raise ImportError(
            f"horovod.ray.elastic_v2 has no {name}; horovod.ray.RayExecutor(settings, min_workers=...) runs elastic "
            "jobs"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
