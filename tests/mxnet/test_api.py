"""The names that scripts use, with their parameters in order and their defaults; and the page that lists them."""

import inspect
import re
from pathlib import Path

import mxnet as mx
import pytest

import horovod.mxnet as hvd
from horovod.common import absent, faces

PAGE = Path(__file__).resolve().parents[2] / "docs/api/mxnet.md"
SCALE = "prescale_factor=1.0, postscale_factor=1.0"
REDUCE = f"average=None, name=None, priority=0, {SCALE}, process_set, op=None"
SIGNATURES = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "allreduce": f"tensor, {REDUCE}",
    "allreduce_": f"tensor, {REDUCE}",
    "grouped_allreduce": f"tensors, {REDUCE}",
    "grouped_allreduce_": f"tensors, {REDUCE}",
    "allgather": "tensor, name=None, priority=0, process_set",
    "grouped_allgather": "tensors, name=None, priority=0, process_set",
    "broadcast": "tensor, root_rank, name=None, priority=0, process_set",
    "broadcast_": "tensor, root_rank, name=None, priority=0, process_set",
    "alltoall": "tensor, splits=None, name=None, priority=0, process_set",
    "reducescatter": f"tensor, op=0, name=None, priority=0, process_set, {SCALE}",
    "grouped_reducescatter": f"tensors, op=0, name=None, priority=0, process_set, {SCALE}",
    "DistributedOptimizer": "optimizer, gradient_predivide_factor=1.0, num_groups=0, process_set",
    "DistributedTrainer": (
        "params, optimizer, optimizer_params=None, compression, gradient_predivide_factor=1.0, prefix=None, "
        "num_groups=0, process_set"
    ),
    "broadcast_parameters": "params, root_rank=0, prefix=None",
    "broadcast_object": "obj, root_rank=0, name=None",
    "allgather_object": "obj, name=None",
}
DEFAULTS = {"process_set": hvd.global_process_set, "compression": hvd.Compression.none}


def written(parameter):
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    if parameter.name in DEFAULTS:
        assert parameter.default is DEFAULTS[parameter.name]
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters(name):
    parameters = [written(p) for p in inspect.signature(getattr(hvd, name)).parameters.values()]
    wanted = SIGNATURES[name].split(", ") if SIGNATURES[name] else []
    assert parameters[: len(wanted)] == wanted


def test_names():
    assert set(hvd.__all__) >= absent.IN_FACES - {"join", "barrier"}
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == list(range(6))
    assert faces.MXNET.number == 4  # bindings/mxnet/call.h
    from horovod.mxnet import compression, functions, mpi_ops

    assert functions.broadcast_object is hvd.broadcast_object
    assert mpi_ops._basics.is_initialized() is hvd.is_initialized()
    assert {"Compressor", "NoneCompressor", "FP16Compressor", "Compression"} <= set(compression.__all__)
    with pytest.raises(AttributeError, match=r"module 'horovod.mxnet' has no attribute 'join'"):
        hvd.join  # noqa: B018


def test_the_page_has_all_names_with_their_parameters():
    if not PAGE.exists():
        pytest.skip("the documents are not here")
    text = PAGE.read_text()
    for name in hvd.__all__:
        assert f"`{name}" in text, name
    for name, parameters in SIGNATURES.items():
        found = re.search(rf"`{name}\((.*?)\)`", text)
        assert found, name
        # The page says Average for 0, and what the other two defaults are.
        plain = re.sub(r"=(global_process_set|Compression.none)", "", found[1]).replace("op=Average", "op=0")
        assert plain == parameters or plain.startswith(f"{parameters}, "), name


def test_fp16_casts_floats_alone():
    integers = mx.nd.array([3], dtype="int32")
    for dtype in ("float32", "float64"):
        floats = mx.nd.array([1.5], dtype=dtype)
        for choice, name in ((hvd.Compression.fp16, "float16"), (hvd.Compression.bf16, "bfloat16")):
            small, context = choice.compress(floats)
            assert name in str(small.dtype), dtype
            back = choice.decompress(small, context)
            assert (back.dtype.__name__, back.asscalar()) == (dtype, 1.5)
    assert hvd.Compression.fp16.compress(integers) == (integers, None)


@pytest.mark.usefixtures("single")
def test_one_process():
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()) == (0, 1, 0, 1, 1)
    assert hvd.gloo_built() is True
    assert isinstance(hvd.nccl_built(), int)
    assert hvd.mpi_enabled() is False
    assert hvd.broadcast_object(3) == 3
    assert hvd.global_process_set.ranks == [0]
