"""Where programs of others import from, beside ``horovod.ray`` itself. Not here, as nobody outside has used them:
``horovod.ray.utils``, ``adapter``, and what ``strategy`` had."""

import importlib

import pytest

pytest.importorskip("ray")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("horovod.ray.runner", "RayExecutor"),  # tests of trainers on Ray
        ("horovod.ray.runner", "BaseHorovodWorker"),  # elastic executors of others
        ("horovod.ray.worker", "BaseHorovodWorker"),
        ("horovod.ray.elastic", "ElasticRayExecutor"),
        ("horovod.ray.elastic", "RayHostDiscovery"),
        ("horovod.ray.elastic", "TestDiscovery"),
        ("horovod.ray.elastic_v2", "RayHostDiscovery"),
        ("horovod.ray.elastic_v2", "TestDiscovery"),
        ("horovod.ray.ray_logger", "log"),
        ("horovod.ray.ray_logger", "configure"),
    ],
)
def test_a_path_that_programs_use(module, name):
    import horovod.ray

    found = getattr(importlib.import_module(module), name)
    assert found is getattr(horovod.ray, name, found)


def test_what_older_versions_of_ray_imported_is_told():
    from horovod.ray import runner

    with pytest.raises(ImportError, match=r"has no Coordinator.*horovod\.ray\.train\.HorovodTrainer"):
        from horovod.ray.runner import Coordinator  # noqa: F401
    assert not hasattr(runner, "MiniSettings")


def test_what_takes_the_place_of_the_adapter_is_told():
    from horovod.ray import elastic_v2

    with pytest.raises(ImportError, match=r"has no ElasticParams; horovod\.ray\.RayExecutor\(settings, min_workers"):
        from horovod.ray.elastic_v2 import ElasticParams  # noqa: F401
    assert not hasattr(elastic_v2, "Other")
