"""Elastic jobs on a cluster in this process, whose pods really run: they are deleted, killed, and come anew."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from tests.runner.kubernetes.fake import Cluster
from tests.runner.kubernetes.test_command import nothing_left, run, until

pytest.importorskip("kubernetes")
pytestmark = pytest.mark.timeout(120)

TRAIN = """
import json, os, sys, time
import horovod.numpy as hvd

folder = sys.argv[1]
hvd.init()
state = hvd.elastic.ObjectState(step=0, sizes=[])

@hvd.elastic.run
def run(state):
    while True:
        size = int(hvd.allreduce(1, op=hvd.Sum, name="size"))
        state.step += 1
        if not state.sizes or state.sizes[-1] != size:
            state.sizes.append(size)
        with open(f"{folder}/step.{os.getpid()}", "w") as file:
            json.dump([state.step, size, time.time()], file)
        if hvd.allreduce(int(os.path.exists(f"{folder}/enough")), op=hvd.Sum, name="enough"):
            return
        if ASKS and hvd.should_stop():
            print("stops", flush=True)
            return
        time.sleep(0.02)
        state.commit()

run(state)
print("sizes", state.sizes, flush=True)
"""


@pytest.fixture
def cluster():
    with Cluster() as made:
        yield made


def step(folder, size, after=0.0, least=1):
    """When a step was done by so many ranks, after that time, as the `least`-th or later; None: none was."""
    for file in folder.glob("step.*"):
        try:
            number, count, at = json.loads(file.read_text())
        except ValueError:
            continue
        if count == size and at > after and number >= least:
            return at
    return None


def started(cluster, folder, asks, *flags):
    """A thread that runs a job, and the list that gets its exit code."""
    program = TRAIN.replace("ASKS", str(asks))
    codes = []
    given = (*flags, "--grace", "10", "--", sys.executable, "-c", program, str(folder))
    thread = threading.Thread(target=lambda: codes.append(run(cluster, *given)))
    thread.start()
    return thread, codes


@pytest.mark.heavy
def test_a_pod_is_killed_and_another_one_comes(cluster, tmp_path, capfd):
    thread, codes = started(cluster, tmp_path, False, "-np", "2", "--min-np", "1")
    until(lambda: step(tmp_path, 2), 60)
    first = {each["metadata"]["name"] for each in cluster.pods()}
    killed = time.time()
    name = cluster.pods()[1]["metadata"]["name"]
    os.killpg(cluster.processes[name].pid, signal.SIGKILL)
    until(lambda: step(tmp_path, 1, killed) or step(tmp_path, 2, killed + 0.5), 30)
    until(lambda: {each["metadata"]["name"] for each in cluster.pods()} - first, 30)
    began = time.time()
    until(lambda: step(tmp_path, 2, began), 60)
    (tmp_path / "enough").touch()
    thread.join(60)
    assert codes == [0]
    out, err = capfd.readouterr()
    assert "sizes [2," in out
    assert name in err
    assert nothing_left(cluster)


@pytest.mark.heavy
def test_a_pod_that_has_to_go_is_heard_by_all_ranks(cluster, tmp_path, capfd):
    thread, codes = started(cluster, tmp_path, True, "-np", "2", "--min-np", "1")
    until(lambda: step(tmp_path, 2, least=3), 60)  # who has never asked hears nothing
    cluster.delete("pods", cluster.pods()[0]["metadata"]["name"])
    thread.join(60)
    assert codes == [0]
    out = capfd.readouterr().out
    assert "[0]<stdout>:stops" in out
    assert "[1]<stdout>:stops" in out
    assert nothing_left(cluster)
