"""What the face exports, and what it says of the rest."""

import subprocess
import sys

import pytest

pytest.importorskip("jax")

import horovod.jax as hvd

SHARED = [
    "init",
    "shutdown",
    "is_initialized",
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "is_homogeneous",
    "max_size",
    "should_stop",
    "allreduce",
    "grouped_allreduce",
    "allgather",
    "grouped_allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "grouped_reducescatter",
    "barrier",
    "broadcast_object",
    "allgather_object",
    "broadcast_parameters",
    "check_in_sync",
    "DistributedOptimizer",
    "Compression",
    "elastic",
    "ProcessSet",
    "global_process_set",
    "add_process_set",
    "remove_process_set",
    "Average",
    "Sum",
    "Adasum",
    "Min",
    "Max",
    "Product",
    "HorovodInternalError",
    "start_timeline",
    "stop_timeline",
    "dump",
    "step",
    "stats",
    "report",
    "log_stats",
    "value_and_grad",
    "grad",
]


def test_names():
    assert set(SHARED) <= set(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    with pytest.raises(AttributeError, match=r"module 'horovod.jax' has no attribute 'join'"):
        hvd.join  # noqa: B018


def test_nothing_before_init_and_nothing_imported_that_is_not_needed():
    program = """
import sys
import horovod.jax as hvd
assert not {"optax", "torch", "tensorflow", "keras", "flax"} & set(sys.modules)
import jax.numpy as jnp
for call in (hvd.rank, lambda: hvd.allreduce(jnp.ones(2)), lambda: hvd.barrier(), lambda: hvd.allgather_object(1)):
    try:
        call()
    except ValueError as error:
        assert "hvd.init()" in str(error), error
    else:
        raise AssertionError(call)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
