"""Jobs on clusters of several raylets, one of which is killed."""

import itertools
import threading
import time

import pytest

pytest.importorskip("ray")

from horovod.ray import ElasticRayExecutor, RayExecutor
from horovod.runner.function.outcome import WorkerError
from tests.ray import functions

pytestmark = pytest.mark.long


class Call:
    """A function call in a thread, because only the main thread can add nodes."""

    def __init__(self, func):
        self._func = func
        self._result = self._error = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            self._result = self._func()
        except BaseException as error:
            self._error = error

    def result(self, seconds):
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._result


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_an_elastic_job_outlives_a_raylet_and_takes_a_new_one(nodes):
    first, second = nodes.add(1), nodes.add(2)
    settings = ElasticRayExecutor.create_settings(min_num_proc=2, num_proc=4, elastic_timeout=60)
    executor = ElasticRayExecutor(settings)
    executor.start()
    messages = []
    call = Call(lambda: executor.run(lambda: functions.trains(30, 5, pause=0.1), callbacks=[messages.append]))
    wait_for(lambda: len(messages) > 5)
    assert messages[-1]["size"] == 4
    killed = time.time()
    nodes.kill(second)
    wait_for(lambda: messages[-1]["size"] == 2)
    again = next(one["time"] for one in messages if one["size"] == 2)
    assert again - killed < 3.0
    nodes.add(3)
    assert call.result(120) == [(rank, 5) for rank in range(5)]
    steps = [one["step"] for one in messages]
    assert max(after - before for before, after in itertools.pairwise(steps)) == 1
    assert first is not None


def test_workers_colocated_on_nodes_and_one_node_lost(nodes):
    added = [nodes.add(2) for _ in range(2)]
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=300), num_hosts=2, num_workers_per_host=2)
    executor.start()
    try:
        reports = executor.run(functions.ranks)
        assert [one[:2] for one in reports] == [(rank, 4) for rank in range(4)]
        node_ids = executor.execute(lambda _: __import__("ray").get_runtime_context().get_node_id())
        assert {node_ids.count(node.node_id) for node in added} == {2}
        call = Call(lambda: executor.run(_steps))
        time.sleep(1.0)
        killed = time.monotonic()
        nodes.kill(added[1])
        with pytest.raises(WorkerError, match=r"rank \d on host .*: its process has died") as caught:
            call.result(60)
        assert time.monotonic() - killed < 50
        assert node_ids[caught.value.rank] == added[1].node_id
    finally:
        executor.shutdown()


def _steps():
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    for _ in range(1000):
        hvd.allreduce(np.ones(4))
        time.sleep(0.05)
