"""Arguments that executors, loggers and settings reject, and their messages. Without a cluster."""

import inspect
import math
import subprocess
import sys
import warnings

import pytest

pytest.importorskip("ray")

from horovod.ray import BaseHorovodWorker, ElasticRayExecutor, RayExecutor, ray_logger
from horovod.ray.elastic import RayHostDiscovery, TestDiscovery

SETTINGS = RayExecutor.create_settings()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of num_workers and num_hosts must be given, got neither"),
        ({"num_workers": 2, "num_hosts": 1}, "only one of num_workers and num_hosts must be given, got 2 and 1"),
        ({"num_workers": 0}, "num_workers must be an integer of at least 1, got 0"),
        ({"num_workers": 1, "cpus_per_worker": -1}, "cpus_per_worker must be an integer of at least 1, got -1"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "use_gpu must be True with gpus_per_worker=1, got False"),
        (
            {"num_workers": 1, "max_workers": 2},
            "max_workers is for elastic jobs, got max_workers=2 without min_workers",
        ),
        ({"num_workers": 1, "reset_limit": 2}, "reset_limit is for elastic jobs"),
        (
            {"min_workers": 2, "max_workers": 1},
            "min_workers <= num_workers <= max_workers, got min_workers 2, num_workers 2 and max_workers 1",
        ),
        ({"min_workers": 1, "cooldown_range": (5, 1)}, r"cooldown range must be .* got \(5, 1\)"),
        ({"min_workers": 1, "elastic_timeout": 0}, r"elastic_timeout must be .* got 0"),
        ({"min_workers": 1, "override_discovery": False}, "settings.discovery must have a method .*, got None"),
    ],
)
def test_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RayExecutor(RayExecutor.create_settings(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout_s": 0}, "timeout_s must be a number of seconds above 0"),
        ({"timeout_s": math.inf}, "timeout_s must be a number of seconds above 0 and at most 10000000, got inf"),
        ({"timeout_s": 10**400}, "at most 10000000, got 10000"),
        ({"strategy": "TIGHT"}, "strategy must be one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD, got 'TIGHT'"),
    ],
)
def test_wrong_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        RayExecutor.create_settings(**arguments)


def test_ssh_has_no_effect_and_a_key_is_not_repeated():
    with pytest.warns(UserWarning, match="ssh_str has no effect: Ray starts the workers") as found:
        RayExecutor.create_settings(ssh_str="SECRET")
    assert "SECRET" not in str(found[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RayExecutor.create_settings()


def test_elastic_settings():
    result = ElasticRayExecutor.create_settings(2, 3, num_proc=2, cooldown_range=(1, 2), verbose=0)
    assert (result.min_num_proc, result.max_num_proc, result.num_proc, result.cooldown_range) == (2, 3, 2, (1, 2))
    assert result.limits().gather == 30.0, "an actor may take as long to start, and the others wait for it"
    assert ElasticRayExecutor.create_settings(timeout_s=30, elastic_timeout=20).limits().gather == 10.0
    with pytest.raises(TypeError, match=r"further arguments must be num_proc, .*, got speed"):
        ElasticRayExecutor.create_settings(speed=1)
    with pytest.raises(ValueError, match="got min_num_proc 3, num_proc 3 and max_num_proc 2"):
        ElasticRayExecutor.create_settings(min_num_proc=3, max_num_proc=2)
    with pytest.raises(ValueError, match="num_proc must be an integer of at least 1, got '4'"):
        ElasticRayExecutor.create_settings(num_proc="4")
    with pytest.raises(ValueError, match=r"elastic_timeout must be .* got inf"):
        ElasticRayExecutor.create_settings(elastic_timeout=math.inf)


def test_old_names_of_elastic_settings():
    with pytest.warns(DeprecationWarning, match="m.._np is deprecated") as found:
        result = ElasticRayExecutor.create_settings(min_np=2, max_np=3)
    assert [str(one.message) for one in found] == [
        "min_np is deprecated: use min_num_proc",
        "max_np is deprecated: use max_num_proc",
    ]
    assert {one.filename for one in found} == {__file__}
    assert (result.min_num_proc, result.max_num_proc) == (2, 3)
    with pytest.warns(DeprecationWarning, match="m.._np is deprecated"):
        result = ElasticRayExecutor.create_settings(min_num_proc=4, max_num_proc=5, min_np=2, max_np=3)
    assert (result.min_num_proc, result.max_num_proc) == (4, 5)


def test_before_start_and_without_ray():
    executor = RayExecutor(SETTINGS, num_workers=1)
    with pytest.raises(RuntimeError, match="run was called without workers"):
        executor.run(len, [[]])
    elastic = ElasticRayExecutor(ElasticRayExecutor.create_settings())
    with pytest.raises(RuntimeError, match="call start"):
        elastic.run(len)
    executor.shutdown()


def test_elastic_workers_do_not_persist():
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1)
    assert executor.num_workers == 1
    for method in (executor.run_remote, executor.execute_single):
        with pytest.raises(NotImplementedError, match=r"elastic .*: use run or execute"):
            method(len)


def test_invalid_functions():
    with pytest.raises(TypeError, match="fn must be a function, got 3"):
        RayExecutor(SETTINGS, num_workers=1).run(3)
    with pytest.raises(TypeError, match="worker_fn must be a function, got 3"):
        ElasticRayExecutor(ElasticRayExecutor.create_settings()).run(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RayHostDiscovery(cpus_per_slot=0), "cpus_per_slot must be an integer of at least 1, got 0"),
        (lambda: TestDiscovery(2, 1, 1.0), "max_hosts must be an integer of at least 2, got 1"),
        (lambda: BaseHorovodWorker(2, 2), "world_rank must be from 0 to 1 with world_size 2, got 2"),
    ],
)
def test_others(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Queue(list):
    put = list.append


def test_rank_0_alone_logs(monkeypatch):
    queue = Queue()
    ray_logger.configure(queue)
    try:
        monkeypatch.setenv("HOROVOD_RANK", "1")
        ray_logger.log({"loss": 1.0})
        monkeypatch.setenv("HOROVOD_RANK", "0")
        ray_logger.log({"loss": 2.0})
        monkeypatch.delenv("HOROVOD_RANK")
        monkeypatch.setenv("HOROVOD_WORKER", "5")  # of an elastic job, which has no rank yet
        ray_logger.log({"loss": 2.5})
        with pytest.raises(TypeError, match="info_dict must be a dict, got 3"):
            ray_logger.log(3)
    finally:
        ray_logger.configure(None)
    ray_logger.log({"loss": 3.0})
    assert queue == [{"loss": 2.0}]


def test_arguments_and_defaults_match_the_known_api():
    assert list(inspect.signature(RayExecutor).parameters) == [
        *("settings", "num_workers", "num_hosts", "num_workers_per_host", "cpus_per_worker", "use_gpu"),
        *("gpus_per_worker", "use_current_placement_group", "min_workers", "max_workers", "reset_limit"),
        *("cooldown_range", "elastic_timeout", "override_discovery"),
    ]
    found = {name: one.default for name, one in inspect.signature(RayExecutor).parameters.items()}
    assert (found["num_workers_per_host"], found["cpus_per_worker"], found["elastic_timeout"]) == (1, 1, 600)
    assert (found["use_current_placement_group"], found["override_discovery"], found["use_gpu"]) == (True, True, False)
    parameters = inspect.signature(RayExecutor.create_settings).parameters
    assert {name: parameters[name].default for name in list(parameters)[:5]} == {
        "timeout_s": 30,
        "ssh_identity_file": None,
        "ssh_str": None,
        "placement_group_timeout_s": 100,
        "nics": None,
    }
    assert list(inspect.signature(ElasticRayExecutor).parameters) == [
        *("settings", "use_gpu", "cpus_per_slot", "gpus_per_slot", "env_vars", "override_discovery")
    ]
    assert list(inspect.signature(TestDiscovery).parameters) == [
        *("min_hosts", "max_hosts", "change_frequency_s", "use_gpu", "cpus_per_slot", "gpus_per_slot", "verbose"),
        "_graceful",
    ]
    assert list(inspect.signature(RayHostDiscovery).parameters) == ["use_gpu", "cpus_per_slot", "gpus_per_slot"]


def test_missing_ray_is_reported_with_a_command():
    code = "import sys; sys.modules['ray'] = None; import horovod.ray"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "horovod.ray needs Ray, which is not installed: pip install 'horovod[ray]'" in done.stderr
