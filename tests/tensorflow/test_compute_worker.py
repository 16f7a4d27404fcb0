"""A process of the compute side: its messages, and the effect of a failed data worker."""

import os
import stat

import pytest

from tests.later import need

need("tensorflow")


def fails(path, message):
    """Return the error of a rank 0 whose data worker is the program ``words``."""
    import os
    import sys

    from horovod.tensorflow.data import compute_worker

    os.environ["HOROVOD_GLOO_IFACE"] = " lo , "
    python, sys.executable = sys.executable, message
    try:
        compute_worker.main(1, "compute", path, 60)
    except compute_worker.DataWorkerFailed as error:
        return str(error), error.code, os.path.exists(path)
    finally:
        del os.environ["HOROVOD_GLOO_IFACE"]
        sys.executable = python


def beside_a_training(path):
    """Return the state after the end of a service that this process ran while it was training."""
    import threading

    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from horovod.tensorflow.data import compute_worker
    from horovod.tensorflow.data.compute_service import TfDataServiceConfig

    found = []

    def read():
        # A timeout shorter than the import of TensorFlow.
        config = TfDataServiceConfig.read(path, wait_for_file_creation=True)
        dataset = tf.data.Dataset.range(4).map(lambda x: x * 2).send_to_data_service(config, 0, 1)
        found.extend(int(x) for x in dataset)
        config.compute_client().shutdown()

    reader = threading.Thread(target=read)
    reader.start()
    compute_worker.main(1, "compute", path, 1.0)
    reader.join()
    np.testing.assert_array_equal(hvd.allreduce(tf.ones(2)), [1, 1])  # Horovod is still initialized
    return sorted(found)


@pytest.mark.heavy
def test_the_compute_side_leaves_the_callers_job_alone(tf_pool, tmp_path):
    assert tf_pool(1).run(beside_a_training, str(tmp_path / "compute.json"), timeout=300) == [[0, 2, 4, 6]]


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    os.chmod(path, path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("text", "message", "code"),
    [
        ("exit 7", "data worker 0 ended with exit code 7, its output says why", 7),
        ("kill -9 $$", "data worker 0 was ended by signals 11 times, the last was 9", 137),
    ],
)
def test_a_data_worker_that_fails_ends_the_compute_side(tf_pool, tmp_path, text, message, code):
    path = str(tmp_path / "compute.json")
    assert tf_pool(1).run(fails, path, program(tmp_path / "worker", text)) == [(message, code, False)]


def test_command_line_of_the_compute_side(monkeypatch):
    from horovod.tensorflow.data import compute_worker

    read = compute_worker.parser.parse_args(["compute.json"])
    assert vars(read) == {"configfile": "compute.json", "dispatchers": 1, "dispatcher_side": "compute", "timeout": 60}
    argv = ["worker", "c.json", "--dispatchers", "2", "--dispatcher-side", "training", "--timeout", "1.5"]
    monkeypatch.setattr("sys.argv", argv)
    assert list(vars(compute_worker.parsed_args).values()) == ["c.json", 2, "training", 1.5]
