"""Preprocessing in data workers: ranks 0 and 1 are the compute side, rank 2 trains."""

import collections
import contextlib
import dataclasses
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.compute import ComputeClient, ComputeService
from horovod.tensorflow.data.compute_service import compute_worker_fn, send_to_data_service, tf_data_service
from horovod.tensorflow.data.config import TfDataServiceConfig
from tests.documents import ROOT
from tests.ranks import on_tensorflow

KEY = b"k" * 32
CONFIG = TfDataServiceConfig(2, 3, "compute", {"lo": [("127.0.0.1", 5)]}, b"\x01\xffk", 7)


def serve(path, dispatchers, workers, side):
    """Run a data service and its first worker until the service is shut down."""
    with ComputeService(dispatchers, workers, KEY, {"lo"}) as service:
        TfDataServiceConfig(dispatchers, workers, side, service.addresses(), KEY).write(path)
        compute_worker_fn(TfDataServiceConfig.read(path))
        service.wait_for_shutdown()


@contextlib.contextmanager
def worker_process(path):
    """Run the first worker of the data service described at ``path`` in a separate process."""
    code = (
        "from horovod.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn\n"
        f"compute_worker_fn(TfDataServiceConfig.read({path!r}), 0)"
    )
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environ) as process:
        try:
            yield process
        finally:
            process.kill()


def on_compute_side(path):
    """Read one pass for each rank, one that ranks share, and elements in turn."""
    if hvd.rank() == 0:
        serve(path, 1, 2, "compute")
        return threading.active_count()
    config = TfDataServiceConfig.read(path, wait_for_file_creation=True)
    if hvd.rank() == 1:
        compute_worker_fn(config, 1)
        return threading.active_count()
    numbers = tf.data.Dataset.range(20).map(lambda x: x * 10)
    got = [sorted(int(x) for x in numbers.send_to_data_service(config, rank)) for rank in range(2)]
    shared = send_to_data_service(numbers, config, 0, 1, reuse_dataset=True)
    got += [sorted(int(x) for x in shared), sorted(int(x) for x in shared)]  # two epochs
    again = send_to_data_service(numbers, config, 0, 1, reuse_dataset=True)  # as another training would
    got.append(sorted(int(x) for x in again))
    turns = numbers.repeat().send_to_data_service(config, 0, 1, "parallel_epochs", True, True)
    got.append([int(x) for x in turns.take(4)])
    wrong = []
    for arguments in (
        (0, None, "parallel_epochs", True, True),
        (0, 2, "parallel_epochs", False, True),
        (2, 2),
        (0, 2, "parallel_epochs", True),
    ):
        try:
            numbers.send_to_data_service(config, *arguments)
        except ValueError as error:
            wrong.append(str(error))
    with config.compute_client() as client:
        client.shutdown()
    return got, wrong


@pytest.mark.heavy
def test_datasets_come_from_data_workers(tf_pool, tmp_path):
    *_, (got, wrong) = tf_pool(3).run(on_compute_side, str(tmp_path / "compute.json"))
    *passes, turns = got
    assert passes == [list(range(0, 200, 10))] * 5
    assert turns[0] == 0
    assert set(turns) <= {0, 10, 20, 30}, "of one worker or two"
    assert wrong == [
        "round_robin needs reuse_dataset and size, got reuse_dataset=True, size=None",
        "round_robin needs reuse_dataset and size, got reuse_dataset=False, size=2",
        "rank must be from 0 to 1 with size 2, got 2",
        "reuse_dataset: rank and size must be those of this process, rank 2 of 3, because the ranks of a job share a "
        "pass; got rank 0, size 2",
    ]


def a_training(path):
    """Return the elements of two shared datasets that this rank gets."""
    config = TfDataServiceConfig.read(path)
    numbers, got = tf.data.Dataset.range(400), []
    for _ in range(2):
        shared = numbers.send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=True)
        got.append([int(x) for x in shared])
    return got


@pytest.mark.heavy
def test_consecutive_training_runs_get_all_batches(tf_pool, tmp_path):
    """The second training, in this process, has counted nothing yet."""
    path = str(tmp_path / "compute.json")
    with ComputeService(1, 1, KEY, {"lo"}) as service:
        TfDataServiceConfig(1, 1, "compute", service.addresses(), KEY).write(path)
        with worker_process(path) as side:
            results = tf_pool(2).run(a_training, path)
            for number in range(2):
                assert sorted(x for rank in results for x in rank[number]) == list(range(400))
            config = TfDataServiceConfig.read(path)
            shared = send_to_data_service(tf.data.Dataset.range(400), config, 0, 1, reuse_dataset=True)
            assert sorted(int(x) for x in shared) == list(range(400))
            with ComputeClient(service.addresses(), KEY) as client:
                client.shutdown()
            assert side.wait(60) == 0


def on_training_side(path):
    """Run two dispatchers in two training ranks, with a worker for each."""
    if hvd.rank() == 0:
        serve(path, 2, 1, "training")
        return None
    config = TfDataServiceConfig.read(path, wait_for_file_creation=True)
    if hvd.rank() == 1:
        return compute_worker_fn(config, 1)
    numbers = tf.data.Dataset.range(20)
    try:
        numbers.send_to_data_service(config, 0)
    except RuntimeError as error:
        refused = str(error)
    with tf_data_service(config, hvd.rank() - 2) as address:
        distribute = tf.data.experimental.service.distribute("distributed_epoch", address)
        return sorted(int(x) for x in numbers.apply(distribute)), refused


@pytest.mark.heavy
def test_dispatchers_on_the_training_side(tf_pool, tmp_path):
    *_, first, second = tf_pool(4).run(on_training_side, str(tmp_path / "compute.json"))
    assert first == second
    assert first[0] == list(range(20))
    assert first[1].startswith("send_to_data_service needs dispatchers on the compute side")


@pytest.mark.heavy
@pytest.mark.parametrize("fault", [pytest.param(signal.SIGSTOP, marks=pytest.mark.heavy), signal.SIGKILL])
def test_losing_a_dispatcher_is_an_error(tmp_path, caplog, fault):
    path = str(tmp_path / "compute.json")
    with ComputeService(1, 1, KEY, {"lo"}) as service:
        config = TfDataServiceConfig(1, 1, "compute", service.addresses(), KEY, 60)
        config.write(path)
        with worker_process(path) as side:
            with config.compute_client() as client:
                client.wait_for_dispatcher_worker_registration(0, 1, 60)
            hasty = dataclasses.replace(config, timeout=2)
            numbers = iter(send_to_data_service(tf.data.Dataset.range(4).repeat(), hasty, 0))
            for _ in range(10):
                next(numbers)
            os.kill(side.pid, fault)
            with pytest.raises(tf.errors.NotFoundError):
                collections.deque(numbers, maxlen=0)
    assert re.search(r"dispatcher 0 of the data service, at 127.0.0.1:\d+, has not answered for 2 s", caplog.text)


@on_tensorflow(1)
def test_missing_services_are_named():
    with ComputeService(1, 2, KEY, {"lo"}) as service:
        config = TfDataServiceConfig(1, 2, "compute", service.addresses(), KEY, 0.1)
        with pytest.raises(ValueError, match="index must be from 0 to 1, got 2: the data service has 2 workers"):
            compute_worker_fn(config, 2)
        with pytest.raises(TimeoutError, match=r"waited 0.1 s for dispatcher 0 .*: dispatcher.0 did not come"):
            tf_data_service(config, 0).__enter__()


def test_the_file_is_only_for_its_owner(tmp_path):
    path = tmp_path / "compute.json"
    CONFIG.write(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["compute.json"]
    assert TfDataServiceConfig.read(path) == CONFIG
    assert TfDataServiceConfig.from_dict(CONFIG.to_dict()) == CONFIG
    assert json.loads(path.read_text())["key"] == "01ff6b"
    assert "01ff6b" not in repr(CONFIG)
    assert "xff" not in repr(CONFIG)
    os.chmod(path, 0o640)
    with pytest.raises(ValueError, match=r"compute.json must have mode 0600, got 0640: it contains a key"):
        TfDataServiceConfig.read(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"dispatchers": 1}', json.dumps({**CONFIG.to_dict(), "key": "xy"})])
def test_files_of_another_format(tmp_path, text):
    path = tmp_path / "compute.json"
    path.write_text(text)
    os.chmod(path, 0o600)
    with pytest.raises(ValueError, match=r"compute.json: "):
        TfDataServiceConfig.read(path)


def test_missing_file_times_out(tmp_path):
    with pytest.raises(TimeoutError, match=r"waited 0\.1 s for the file \S+compute.json"):
        TfDataServiceConfig.read(tmp_path / "compute.json", wait_for_file_creation=True, timeout=0.1)
    with pytest.raises(FileNotFoundError):
        TfDataServiceConfig.read(tmp_path / "compute.json")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("dispatchers", 0), ("workers_per_dispatcher", True), ("dispatcher_side", "both"), ("timeout", 0)],
)
def test_invalid_arguments_are_refused(name, wrong):
    with pytest.raises(ValueError, match=rf"{name} must be .*, got {wrong!r}"):
        TfDataServiceConfig(**{**vars(CONFIG), name: wrong})
