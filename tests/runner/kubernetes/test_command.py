"""`horovodrun kubernetes` against a cluster in this process, whose pods really run."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from horovod.runner.launch import main

from tests.runner.kubernetes.fake import Cluster

pytest.importorskip("kubernetes")


@pytest.fixture
def cluster():
    with Cluster() as made:
        yield made


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def words(cluster, *rest):
    return ["kubernetes", "--kubeconfig", cluster.kubeconfig, *rest]


def run(cluster, *rest):
    return main(words(cluster, "--image", "app:1", "--port", str(free_port()), *rest))


RANK = """
import horovod.numpy as hvd, numpy as np
hvd.init()
total = hvd.allreduce(np.array([float(hvd.rank() + 1)]), op=hvd.Sum)
print("rank", hvd.rank(), "of", hvd.size(), "sums", total[0], flush=True)
"""


def test_a_job_trains_and_leaves_nothing(cluster, capfd):
    assert run(cluster, "--name", "train", "-np", "3", "--", sys.executable, "-c", RANK) == 0
    out, err = capfd.readouterr()
    for rank in range(3):
        assert f"[{rank}]<stdout>:rank {rank} of 3 sums 6.0" in out
    assert "job train in namespace default: 3 pods of 1 ranks" in err
    assert not any(cluster.objects[kind] for kind in ("jobs", "pods", "services", "secrets"))
