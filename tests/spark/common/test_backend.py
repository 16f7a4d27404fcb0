"""How ranks are started, and with which arguments and environment."""

import os

import pytest

pytest.importorskip("pyspark")

from horovod.spark import job
from horovod.spark.common.backend import Backend, LocalBackend, SparkBackend


def test_spark_tasks_get_the_environment_and_further_arguments(monkeypatch):
    calls = []
    monkeypatch.setattr(job, "run", lambda fn, **kwargs: calls.append(kwargs) or [fn(*kwargs["args"])] * 3)
    backend = SparkBackend(3, env={"A": "1", "B": "1"}, start_timeout=5)
    assert backend.run(max, (1, 2), env={"B": "2"}) == [2, 2, 2]
    assert calls == [{"args": (1, 2), "kwargs": {}, "num_proc": 3, "env": {"A": "1", "B": "2"}, "start_timeout": 5}]


def test_processes_of_this_host_get_the_environment(monkeypatch):
    monkeypatch.setenv("SM_HOSTS", '["algo-1", "algo-2"]')  # for this host, ignoring the training service's variables
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")

    def look(name, more):
        return os.environ[name] + more

    assert LocalBackend(2, env={"FOUND": "a"}).run(look, ("FOUND",), {"more": "b"}, {"FOUND": "c"}) == ["cb", "cb"]
    assert "FOUND" not in os.environ


def test_invalid_backends_are_named(monkeypatch):
    from pyspark import SparkContext

    with pytest.raises(ValueError, match="num_proc must be an integer of at least 1, got 0"):
        LocalBackend(0)
    with pytest.raises(NotImplementedError, match="Backend must define run"):
        Backend().run(print)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(RuntimeError, match="num_proc must be given if there is no active SparkContext"):
        SparkBackend().num_processes()
