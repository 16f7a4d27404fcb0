"""Elastic runs without a cluster: there is no host, so all runs wait for one."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray")

from horovod.ray import ElasticRayExecutor, members
from horovod.ray.members import ElasticJob
from tests.runner.launching import eventually


class Nowhere:
    def find_available_hosts_and_slots(self):
        return {}


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(members.ray, "put", lambda value: value)
    monkeypatch.setattr(members.cluster, "require", lambda: None)
    settings = ElasticRayExecutor.create_settings(
        min_num_proc=1, elastic_timeout=60, nics="lo", discovery=Nowhere(), verbose=0
    )
    job = ElasticJob(settings, 1, 0)
    job.prepare({})
    return job


def threads_of_runs():
    return [one.name for one in threading.enumerate() if one.name == "horovod-ray-nodes"]


def test_forgetting_ends_the_runs_of_other_threads(job):
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(job.run, len, None) for _ in range(2)]
        eventually(lambda: len(threads_of_runs()) == 2, 10, "both wait for hosts")
        job.forget()
        for run in runs:
            with pytest.raises(RuntimeError, match=r"shutdown\(\) was called while the job was running"):
                run.result(20)
    assert threads_of_runs() == []
    assert job._boxes == {}
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        job.run(len, None)
