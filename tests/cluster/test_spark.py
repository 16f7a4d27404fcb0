"""Spark's own master, with workers on four hosts, and jobs of an application on host1."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runner.launching import eventually
from tests.testbed.cluster import Cluster

SECONDS = 300
_QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

APPLICATION = """
import io, json, os, socket, sys, time
from pyspark import SparkConf, SparkContext
import horovod.spark

def where():
    import numpy as np
    import horovod.numpy as hvd
    hvd.init()
    total = hvd.allreduce(np.array([hvd.rank()]), op=hvd.Sum).tolist()
    return socket.gethostname(), hvd.local_rank(), hvd.local_size(), hvd.cross_size(), total

def train(folder):
    import numpy as np
    import horovod.numpy as hvd
    hvd.init()
    state = hvd.elastic.ObjectState(sizes=[])

    @hvd.elastic.run
    def run(state):
        while True:
            size = int(hvd.allreduce(np.ones(1), op=hvd.Sum, name="size")[0])
            if not state.sizes or state.sizes[-1] != size:
                state.sizes.append(size)
                with open(f"{folder}/{hvd.rank()}.{len(state.sizes)}", "w") as file:
                    json.dump([socket.gethostname(), size, time.time()], file)
            if size == 8 and len(state.sizes) >= 3:
                return state.sizes
            time.sleep(0.05)
            state.commit()

    return run(state)

context = SparkContext(conf=SparkConf().setAppName("test").setMaster("spark://10.77.0.1:7077"))
context.setLogLevel("OFF")
print(json.dumps(horovod.spark.run(where, num_proc=8)), flush=True)
err = io.StringIO()
sizes = horovod.spark.run_elastic(train, (sys.argv[1],), num_proc=8, min_num_proc=4, stderr=err)[0]
print(json.dumps([sizes, err.getvalue()]), flush=True)
context.stop()
"""

ESTIMATOR = """
import json, os, pathlib, socket, sys
import torch
from pyspark.sql import SparkSession
from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator
from tests.spark import digits

class Net(torch.nn.Sequential):
    def forward(self, features):
        pathlib.Path(os.environ["TOLD"], socket.gethostname()).touch()
        return super().forward(features)

def right(output, label):
    return (output.argmax(1) == label).float().mean()

builder = SparkSession.builder.master("spark://10.77.0.1:7077")
spark = builder.config("spark.ui.enabled", "false").config("spark.task.cpus", "2").getOrCreate()  # a rank on each host
spark.sparkContext.setLogLevel("OFF")
frame = digits.frame(spark)
torch.manual_seed(1)
model = Net(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
fitted = TorchEstimator(
    backend=SparkBackend(4, env={"TOLD": sys.argv[2]}), store=Store.create(sys.argv[1]), model=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=1e-2), loss=torch.nn.CrossEntropyLoss(), metrics=[right],
    feature_cols=["features"], label_cols=["label"], validation=0.2, batch_size=16, epochs=6, random_seed=3, verbose=0,
).fit(frame)
print(json.dumps([sorted(os.listdir(sys.argv[2])), fitted.getHistory()["val_right"][-1]]), flush=True)
spark.stop()
"""


@pytest.fixture
def spark_master(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with a master on host1 and a worker of two cores on each host."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed (scripts/install-system-packages.sh)")
    import pyspark

    start = Path(pyspark.__file__).parent / "bin" / "spark-class"
    package = "org.apache.spark.deploy"
    master = [start, f"{package}.master.Master", "--host", "10.77.0.1", "--port", "7077", "--webui-port", "0"]
    processes = [cluster.host(1).popen(master, **_QUIET, env=_environment(1))]
    for number in range(1, 5):
        options = ["--cores", "2", "--memory", "1500m", "--host", f"10.77.0.{number}", "--webui-port", "0"]
        worker = [start, f"{package}.worker.Worker", *options, "--work-dir", "/var/tmp/spark", "spark://10.77.0.1:7077"]
        processes.append(cluster.host(number).popen(worker, **_QUIET, env=_environment(number)))
    yield cluster
    for host in cluster.hosts:
        host.kill_all()
        shutil.rmtree(host.path("/var/tmp/spark"), ignore_errors=True)
    for process in processes:
        process.wait(20)


def _environment(number: int) -> dict[str, str | None]:
    home = str(Path(importlib.util.find_spec("pyspark").origin).parent)  # type: ignore[union-attr, arg-type]
    local = {"SPARK_LOCAL_IP": f"10.77.0.{number}", "SPARK_LOCAL_DIRS": "/var/tmp/spark"}
    return {"SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m", **local}


def _periods(folder: Path) -> list[tuple[str, int, float]]:
    """(host, size, time) of each rank's first step with so many ranks."""
    found = []
    for file in folder.iterdir():
        try:
            found.append(tuple(json.loads(file.read_text())))
        except ValueError:
            continue
    return found


@pytest.mark.heavy
def test_ranks_by_host_and_an_executor_that_is_killed(spark_master: Cluster, tmp_path: Path) -> None:
    script, folder = tmp_path / "application.py", tmp_path / "told"
    script.write_text(APPLICATION)
    folder.mkdir()
    driver = spark_master.host(1).popen([sys.executable, script, folder], env=_environment(1), text=True)
    try:
        eventually(lambda: sum(size == 8 for _, size, _ in _periods(folder)) == 8, SECONDS, "eight ranks train")
        executors = [
            pid for pid, line in spark_master.host(3).processes().items() if "CoarseGrainedExecutorBackend" in line
        ]
        killed = time.time()
        for pid in executors:
            os.kill(pid, signal.SIGKILL)
        out, err = driver.communicate(timeout=SECONDS)
    finally:
        driver.kill()
        driver.communicate()
    assert driver.returncode == 0, err
    first, second = out.splitlines()[-2:]
    places = json.loads(first)
    assert [local for _, local, *_ in places] == [0, 1] * 4
    assert {(size, across, tuple(total)) for *_, size, across, total in places} == {(2, 4, (28,))}
    hosts = [host for host, *_ in places]
    assert hosts[0::2] == hosts[1::2]
    assert sorted(hosts[0::2]) == ["host1", "host2", "host3", "host4"]
    sizes, said = json.loads(second)
    assert sizes[0] == sizes[-1] == 8
    assert min(sizes) in (6, 7)
    assert "host host3, Spark task" in said
    survivors = [at for _, size, at in _periods(folder) if size < 8]
    assert min(survivors) - killed < 10


@pytest.mark.heavy
def test_an_estimator_trains_on_all_hosts_with_a_store_that_they_see(spark_master: Cluster, tmp_path: Path) -> None:
    for module in ("torch", "sklearn"):
        pytest.importorskip(module)
    script, store, told = tmp_path / "estimator.py", tmp_path / "store", tmp_path / "told"
    script.write_text(ESTIMATOR)
    told.mkdir()
    environment = {**_environment(1), "PYTHONPATH": str(Path(__file__).parents[2])}
    driver = spark_master.host(1).popen([sys.executable, script, store, told], env=environment, text=True)
    try:
        out, err = driver.communicate(timeout=SECONDS)
    finally:
        driver.kill()
        driver.communicate()
    assert driver.returncode == 0, err
    hosts, right = json.loads(out.splitlines()[-1])
    assert hosts == ["host1", "host2", "host3", "host4"]
    assert right > 0.9
    assert os.listdir(store) == ["runs"], "the data are removed when the training ends"
