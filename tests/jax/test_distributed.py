"""``jax.distributed.initialize()`` in jobs of horovodrun: JAX's own multi-process programs."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

from horovod.common import frontends
from horovod.jax import functions as known
from tests.cluster import jobs as cluster_jobs
from tests.runner.launching import run_job
from tests.testbed.cluster import Cluster

PROGRAM = """
import os
import jax
import horovod.jax as hvd

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()
from jax import numpy as jnp
from jax.experimental import multihost_utils

gathered = multihost_utils.process_allgather(jnp.float32(jax.process_index() + 1))
print("of", jax.process_count(), "devices", len(jax.devices()), "sum", float(gathered.sum()), flush=True)
assert jax.process_index() == int(os.environ["HOROVOD_RANK"]) == hvd.rank()
own = hvd.allreduce(jnp.float32(hvd.rank()), op=hvd.Sum)
print("ours", float(own), flush=True)
jax.distributed.shutdown()
"""


@pytest.mark.heavy
def test_initialize_finds_everything(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_job(["-np", "2", sys.executable, str(program)])
    assert done.code == 0, done.out + done.err
    assert done.out.count("of 2 devices 2 sum 3.0") == 2
    assert done.out.count("ours 1.0") == 2


@pytest.mark.heavy
def test_initialize_on_two_hosts(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 0 and another rank share one host; a third rank is on the other."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = cluster_jobs.run_job(cluster, "-np", "3", "-H", "host2:2,host3:1", sys.executable, str(program))
    assert done.code == 0, done.out + done.err
    assert done.out.count("of 3 devices 3 sum 6.0") == 3


def test_all_ranks_use_the_address_that_reached_rank_0(jax_pool):
    """Each rank is its own node, so ranks connect by TCP, as on several hosts."""

    def work():
        own = known.coordinator()
        return own, known.coordinator("4711"), frontends.JAX.require_job().first_address, known.local_device({})

    results = jax_pool(2, HOROVOD_TRANSPORT="tcp").run(work)
    ports = {own.rpartition(":")[2] for own, *_ in results}
    assert len(ports) == 1
    assert [address for _, address, *_ in results] == ["127.0.0.1:4711"] * 2
    assert [address for _, _, address, _ in results] == ["", "127.0.0.1"]
    assert [device for *_, device in results] == [0, 1]


@pytest.mark.parametrize(("address", "message"), [("10.1.2.3", "10.1.2.3:5"), ("fd00::1", "[fd00::1]:5"), ("", None)])
def test_the_address_of_the_coordinator(monkeypatch, address, message):
    monkeypatch.setattr(known.basics, "init", lambda: None)
    monkeypatch.setattr(known.basics, "rank", lambda: 1)
    monkeypatch.setattr(known, "broadcast_object", lambda own, root, name: "5")
    monkeypatch.setattr(frontends.JAX, "job", frontends.Job(1, 2, 0, 1, 1, 2, True, False, first_address=address))
    assert known.coordinator() == (message or "127.0.0.1:5")


def test_each_process_owns_its_assigned_accelerators(monkeypatch):
    monkeypatch.setattr(known.basics, "local_rank", lambda: 1)
    monkeypatch.setattr(known.basics, "local_size", lambda: 2)
    assert known.local_device({}) == 1
    assert known.local_device({"CUDA_VISIBLE_DEVICES": "4,5"}) == 1
    assert known.local_device({"CUDA_VISIBLE_DEVICES": "5"}) is None
    assert known.local_device({"CUDA_VISIBLE_DEVICES": "4,5", "HOROVOD_GPUS_PER_WORKER": "2"}) is None
