"""Functions on ranks that are actors of a real Ray."""

import os
import time

import pytest

pytest.importorskip("ray")

from horovod.ray import RayExecutor
from horovod.runner.function.outcome import WorkerError
from tests.ray import functions
from tests.runner.cluster.tasks import has_exited

WITHIN = 15.0  # seconds for a failure to be reported; waiting for a deadline would take longer


@pytest.fixture(scope="module")
def four(local):
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=300), num_workers=4)
    executor.start(
        functions.Executable, executable_args=[10], executable_kwargs={"by": 5}, extra_env_vars={"COLOUR": "blue"}
    )
    yield executor
    executor.shutdown()


@pytest.mark.smoke
def test_results_by_rank(four):
    assert four.num_workers == 4
    assert four.run(functions.ranks, [0.5]) == [(rank, 4, rank, 1, 6.5) for rank in range(4)]


def test_repeated_runs_on_the_same_workers_and_in_a_new_job(four):
    pids = four.run(os.getpid)
    assert four.run(functions.in_new_job) == [(rank, 4, rank, 1, 6.0) for rank in range(4)]
    assert four.run(os.getpid) == pids


def test_the_executable_keeps_what_it_holds(four):
    before = four.execute(lambda value: value.value)
    assert four.execute(lambda value: value.grow()) == [value + 5 for value in before]
    assert four.execute_single(lambda value: value.grow()) == before[0] + 10


def test_remote_calls_are_references(four, local):
    assert local.get(four.run_remote(functions.ranks, kwargs={"extra": 1.0}))[3] == (3, 4, 3, 1, 7.0)


def test_variables(four):
    assert four.run(os.getenv, ["COLOUR"]) == ["blue"] * 4
    assert four.run(os.getenv, ["HOROVOD_SIZE"]) == ["4"] * 4


def test_callbacks_get_what_rank_0_logs(four):
    messages = []
    assert four.run(functions.logs, [3], callbacks=[messages.append]) == [0, 1, 2, 3]
    assert messages == [{"step": step, "rank": 0} for step in range(3)]


def test_exceptions_keep_their_class_and_name_rank_and_host(four):
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"rank 2 on host .*: ValueError: the learning rate is negative") as caught:
        four.run(functions.fails, [2])
    assert time.monotonic() - start < WITHIN
    assert isinstance(caught.value, WorkerError)
    assert caught.value.rank == 2
    assert "in fails" in caught.value.remote_traceback
    assert four.run(functions.in_new_job)[0] == (0, 4, 0, 1, 6.0)


def test_dead_workers_are_named_and_the_others_end(local):
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=300), num_workers=2)
    executor.start()
    try:
        start = time.monotonic()
        with pytest.raises(WorkerError, match=r"rank 1 on host .*: its process has died") as caught:
            executor.run(functions.dies, [1])
        assert time.monotonic() - start < WITHIN
        assert caught.value.rank == 1
        with pytest.raises(RuntimeError, match=r"rank 1 on host .* is lost"):
            executor.run(functions.ranks)
    finally:
        executor.shutdown()
    with pytest.raises(RuntimeError, match="call start"):
        executor.run(functions.ranks)


def test_workers_of_another_version_are_named(local, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import horovod._version\nhorovod._version.__version__ = '0.0.7'\n")
    with pytest.raises(RuntimeError, match=r"worker 0 \(host .*\) has horovod 0\.0\.7, the driver has"):
        _start(local, tmp_path)


HIDES = """
import sys
class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "horovod":
            raise ModuleNotFoundError("No module named 'horovod'", name="horovod")
sys.meta_path.insert(0, Hider())
"""


def test_workers_without_the_package_get_advice(local, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HIDES)
    with pytest.raises(RuntimeError, match=r"worker 0 did not start: .*horovod has to be installed in the Python"):
        _start(local, tmp_path)


def _start(ray, folder):
    """Start a driver within Ray whose workers get another PYTHONPATH."""
    from horovod.ray import worker_group

    options = {"runtime_env": {"env_vars": {"PYTHONPATH": str(folder)}}}
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=300), num_workers=1)
    group = worker_group.WorkerGroup(executor._settings, executor._plan, None, 1, 0)
    group._options |= options
    try:
        group.start({})
    finally:
        group.shutdown()


def test_workers_of_a_host_see_each_others_gpus(local):
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=300), num_workers=2, use_gpu=True)
    executor.start()
    try:
        seen = executor.run(os.getenv, ["CUDA_VISIBLE_DEVICES"])
        own = [local.get(one.get_gpu_ids.remote())[0] for one in executor._workers.workers]
        assert sorted(own) == ["0", "1"]
        assert seen == [",".join(own)] * 2  # a rank's own GPU has index local_rank
    finally:
        executor.shutdown()


def test_shutdown_ends_the_processes(local):
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=300), num_workers=2)
    executor.start()
    pids = executor.run(os.getpid)
    executor.shutdown()
    assert all(has_exited(pid, WITHIN) for pid in pids)
