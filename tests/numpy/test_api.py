"""The names of horovod.numpy, beside those of horovod.torch: same name, same arguments."""

import importlib
import inspect
import os
import subprocess
import sys

import pytest

import horovod.numpy as hvd

NOT_HERE = {  # of gradients, modules and sparse tensors, which arrays have none of
    "DistributedOptimizer",
    "SyncBatchNorm",
    "broadcast_optimizer_state",
    "empty_shared",
    "in_shared_memory",
    "sparse_allreduce_async",
}
ONLY_HERE = {"Handle"}


def test_names_and_arguments_are_those_of_pytorch():
    pytest.importorskip("torch")
    torch = importlib.import_module("horovod.torch")
    assert set(torch.__all__) - set(hvd.__all__) == NOT_HERE
    assert set(hvd.__all__) - set(torch.__all__) == ONLY_HERE
    for name in set(hvd.__all__) & set(torch.__all__):
        ours, theirs = getattr(hvd, name), getattr(torch, name)
        if inspect.isroutine(ours):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


def test_exported_names_are_there():
    assert len(set(hvd.__all__)) == len(hvd.__all__)
    for name in hvd.__all__:
        assert getattr(hvd, name) is not None
    with pytest.raises(AttributeError, match=r"^module 'horovod.numpy' has no attribute 'alreduce'$"):
        hvd.alreduce  # noqa: B018


def test_before_init():
    for call in (lambda: hvd.allreduce(1.0), lambda: hvd.allgather_async([]), hvd.barrier, hvd.join, hvd.rank):
        with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
            call()


def test_no_framework_is_imported():
    code = (
        "import sys, horovod.numpy as hvd\n"
        "hvd.init()\n"
        "assert hvd.allreduce(2.0) == 2.0\n"
        "print([name for name in ('torch', 'tensorflow', 'keras', 'jax', 'ml_dtypes') if name in sys.modules])"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environ)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "[]"
