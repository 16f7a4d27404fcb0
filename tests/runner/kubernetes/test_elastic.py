"""An elastic job on a cluster in this process, in which one running pod is evicted."""

import sys
import threading

import pytest

pytest.importorskip("kubernetes")

from tests.runner.kubernetes.fake import Cluster
from tests.runner.kubernetes.test_command import nothing_left, run, until

pytestmark = pytest.mark.timeout(120)

TRAIN = """
import pathlib, sys, time
import horovod.numpy as hvd

hvd.init()
state = hvd.elastic.ObjectState(step=0)


@hvd.elastic.run
def run(state):
    while not hvd.should_stop():  # who has never asked hears nothing
        state.step += 1
        if state.step == 3 and hvd.size() == 2:
            pathlib.Path(sys.argv[1], f"steps.{hvd.rank()}").touch()
        time.sleep(0.02)
        state.commit()
    print("stops", flush=True)


run(state)
"""


@pytest.mark.heavy
def test_eviction_of_a_pod_notifies_all_ranks(tmp_path, capfd):
    codes = []
    args = ("-np", "2", "--min-np", "1", "--grace", "10", "--", sys.executable, "-c", TRAIN, str(tmp_path))
    with Cluster() as cluster:
        thread = threading.Thread(target=lambda: codes.append(run(cluster, *args)))
        thread.start()
        until(lambda: len(list(tmp_path.glob("steps.*"))) == 2, 60)
        cluster.delete("pods", cluster.pods()[0]["metadata"]["name"])
        thread.join(60)
        assert codes == [0]
        out = capfd.readouterr().out
        assert "[0]<stdout>:stops" in out
        assert "[1]<stdout>:stops" in out
        assert nothing_left(cluster)
