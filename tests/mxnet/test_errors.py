"""Errors raised at once and errors raised later, as MXNet exceptions and as Python exceptions."""

import os
import re
import signal

import mxnet as mx
import numpy as np
import pytest

import horovod.mxnet as hvd
from horovod.common.exceptions import HorovodInternalError


def fails(result, *parts):
    with pytest.raises(mx.base.MXNetError) as caught:
        result.wait_to_read()
    assert isinstance(caught.value, HorovodInternalError)
    for part in parts:
        assert re.search(part, str(caught.value)), (part, str(caught.value))


X = mx.nd.ones((4, 2))
REFUSED = {
    "no array": (lambda: hvd.allreduce(np.ones(3)), "allreduce must be an NDArray of MXNet, got a ndarray"),
    "a list": (lambda: hvd.allreduce_([X]), "allreduce_ must be an NDArray of MXNet, got a list"),
    "sparse": (
        lambda: hvd.allreduce(X.tostype("row_sparse")),
        "allreduce must have the storage type default, got row_sparse",
    ),
    "one for a list": (lambda: hvd.grouped_allreduce(X), "tensors must be a list of NDArrays, got a NDArray"),
    "in a list": (lambda: hvd.grouped_allgather([X, 3]), r"grouped_allgather: tensors\[1\] must be an NDArray"),
    "name": (lambda: hvd.allreduce(X, name=3), "allreduce: name must be a str or None, got 3"),
    "priority": (lambda: hvd.allreduce(X, priority="high"), "allreduce: priority must be an integer .*, got 'high'"),
    "splits, 2-D": (lambda: hvd.alltoall(X, [[4]]), "splits must be 1-D, int32, with 1 integers .*, got 2 dimensions"),
    "splits, dtype": (
        lambda: hvd.alltoall(X, mx.nd.array([4])),
        "splits must be 1-D, int32, with 1 integers of at least 0, got dtype float32",
    ),
    "parameters": (lambda: hvd.broadcast_parameters([X]), "params must be a dict of NDArrays or .*, got a list"),
    "a parameter": (lambda: hvd.broadcast_parameters({"a": 3}), r"params\['a'\] must be an NDArray .*, got a int"),
    "prefix": (lambda: hvd.broadcast_parameters({}, prefix=3), "prefix must be a string or None, got 3"),
    "optimizer": (lambda: hvd.DistributedOptimizer("sgd"), "optimizer must be an mxnet.optimizer.Optimizer, got a str"),
    "predivide": (
        lambda: hvd.DistributedOptimizer(mx.optimizer.SGD(), gradient_predivide_factor=0),
        "gradient_predivide_factor must be a finite number above 0, got 0",
    ),
    "num_groups": (
        lambda: hvd.DistributedOptimizer(mx.optimizer.SGD(), num_groups=-1),
        "num_groups must be an integer of at least 0, got -1",
    ),
    "compression": (
        lambda: hvd.DistributedTrainer([], "sgd", compression="fp16"),
        "compression must be Compression.none.*, got 'fp16'",
    ),
    "a trainer's set": (lambda: hvd.DistributedTrainer([], "sgd", process_set=3), "process_set must be a ProcessSet"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused_at_once(single, case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    if "Optimizer" not in str(call.__code__.co_names) or case in ("predivide", "num_groups"):
        assert isinstance(caught.value, mx.base.MXNetError)
        assert "rank 0" in str(caught.value)
    assert hvd.allreduce(X, op=hvd.Sum).asnumpy().sum() == 8
    mx.nd.waitall()


def test_arrays_of_gpus_are_refused(single, monkeypatch):
    """There is no GPU here: the array only claims to be on one."""
    x = mx.nd.ones((2,))
    monkeypatch.setattr(mx.nd.NDArray, "context", property(lambda self: mx.gpu(0)))
    with pytest.raises(ValueError, match=r"allreduce must be on the CPU, .*does not use GPUs, got gpu\(0\)"):
        hvd.allreduce(x)


def lost_peer():
    hvd.allreduce(mx.nd.ones((2,))).wait_to_read()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    x = mx.nd.ones((2,))

    def steps():
        while True:
            hvd.allreduce_(x, name="step")
            x.wait_to_read()

    with pytest.raises(mx.base.MXNetError, match="rank 1") as caught:
        steps()
    assert isinstance(caught.value, HorovodInternalError)
    fails(hvd.allreduce(mx.nd.ones((2,)), name="later"), "allreduce.later")
    return "went on"


def test_a_lost_peer(pool):
    results = pool(3).run(lost_peer, errors=True)
    assert results[::2] == ["went on"] * 2
