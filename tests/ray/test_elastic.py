"""Elastic jobs on a real Ray with one node."""

import itertools
import threading

import pytest

pytest.importorskip("ray")

from horovod.ray import ElasticRayExecutor, RayExecutor
from horovod.ray.elastic import TestDiscovery
from horovod.runner.function.outcome import WorkerError
from tests.ray import functions


def test_a_killed_worker_is_replaced(local, capfd):
    """The host is in cooldown for a second or two, then a new worker joins."""
    settings = ElasticRayExecutor.create_settings(
        min_num_proc=1, num_proc=3, max_num_proc=3, cooldown_range=(1, 1), elastic_timeout=60
    )
    executor = ElasticRayExecutor(settings, env_vars={"COLOUR": "blue"})
    executor.start()
    messages = []
    results = executor.run(lambda: functions.trains(20, 3, fall=1, pause=0.02), callbacks=[messages.append])
    assert results == [(rank, 3) for rank in range(3)]
    sizes = [one["size"] for one in messages]
    assert 2 in sizes, sizes
    assert messages[-1]["step"] >= 19
    gaps = [after["time"] - before["time"] for before, after in itertools.pairwise(messages)]
    assert max(gaps) < 10
    assert "rank 1 on host" in capfd.readouterr().err


def test_an_executor_with_min_workers_is_elastic(local):
    executor = RayExecutor(
        RayExecutor.create_settings(), num_workers=2, min_workers=1, max_workers=2, elastic_timeout=60
    )
    executor.start(functions.Executable, [7])
    assert sorted(executor.execute(lambda value: value.grow())) == [8, 9]
    executor.shutdown()
    with pytest.raises(RuntimeError, match="call start"):
        executor.run(len, [[]])


def test_an_exception_ends_the_job_when_too_few_are_left(local):
    executor = ElasticRayExecutor(
        ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, elastic_timeout=120, verbose=0)
    )
    executor.start()
    with pytest.raises(ValueError, match="the learning rate is negative") as caught:
        executor.run(lambda: functions.fails(1))
    assert isinstance(caught.value, WorkerError)
    assert "rank 1 on host" in str(caught.value)


def test_failed_discovery_is_reported(local):
    class Broken:
        def find_available_hosts_and_slots(self):
            raise OSError("the list is gone")

    settings = ElasticRayExecutor.create_settings(discovery=Broken())
    executor = ElasticRayExecutor(settings, override_discovery=False)
    executor.start()
    with pytest.raises(RuntimeError, match="hosts could not be found: OSError: the list is gone"):
        executor.run(len)


def test_failed_starts_leave_no_threads(local, monkeypatch):
    executor = ElasticRayExecutor(ElasticRayExecutor.create_settings())
    executor.start()
    monkeypatch.setenv("HOROVOD_ELASTIC_CODE", "purple")
    before = {one.name for one in threading.enumerate()}
    with pytest.raises(ValueError, match="purple"):
        executor.run(len)
    assert {one.name for one in threading.enumerate()} <= before


def test_hosts_of_test_discovery(local):
    discovery = TestDiscovery(1, 3, 0.01, verbose=False)
    assert list(discovery.find_available_hosts_and_slots().values()) == [6]
