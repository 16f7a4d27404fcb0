"""The names that scripts use, with their parameters in order and their defaults."""

import inspect
import subprocess
import sys

import pytest

import horovod.torch as hvd

SCALE = "prescale_factor=1.0, postscale_factor=1.0"
REDUCE = f"average=None, name=None, op=None, {SCALE}, process_set"
REDUCE_COMP = f"average=None, name=None, compression, op=None, {SCALE}, process_set"
SCATTER = f"name=None, op=0, process_set, {SCALE}"
SCATTER_COMP = f"name=None, compression, op=0, process_set, {SCALE}"

SIGNATURES = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "allreduce": f"tensor, {REDUCE_COMP}",
    "allreduce_async": f"tensor, {REDUCE}",
    "allreduce_": f"tensor, {REDUCE}",
    "allreduce_async_": f"tensor, {REDUCE}",
    "grouped_allreduce": f"tensors, {REDUCE_COMP}",
    "grouped_allreduce_async": f"tensors, {REDUCE}",
    "grouped_allreduce_": f"tensors, {REDUCE}",
    "grouped_allreduce_async_": f"tensors, {REDUCE}",
    "sparse_allreduce_async": "tensor, name, op, process_set",
    "allgather": "tensor, name=None, process_set",
    "allgather_async": "tensor, name=None, process_set",
    "grouped_allgather": "tensors, name=None, process_set",
    "grouped_allgather_async": "tensors, name=None, process_set",
    "broadcast": "tensor, root_rank, name=None, process_set",
    "broadcast_": "tensor, root_rank, name=None, process_set",
    "broadcast_async": "tensor, root_rank, name=None, process_set",
    "broadcast_async_": "tensor, root_rank, name=None, process_set",
    "alltoall": "tensor, splits=None, name=None, process_set",
    "alltoall_async": "tensor, splits=None, name=None, process_set",
    "reducescatter": f"tensor, {SCATTER_COMP}",
    "reducescatter_async": f"tensor, {SCATTER}",
    "grouped_reducescatter": f"tensors, {SCATTER_COMP}",
    "grouped_reducescatter_async": f"tensors, {SCATTER}",
    "join": "device=-1",
    "barrier": "process_set",
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, process_set",
    "allgather_object": "obj, name=None",
    "DistributedOptimizer": (
        "optimizer, named_parameters=None, compression, backward_passes_per_step=1, op=0, "
        "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, process_set"
    ),
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
}
DEFAULTS = {"process_set": hvd.global_process_set, "compression": hvd.Compression.none}


def _written(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    if parameter.name in DEFAULTS:
        assert parameter.default is DEFAULTS[parameter.name]
        return parameter.name
    return f"{parameter.name}={parameter.default}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters(name):
    parameters = [_written(p) for p in inspect.signature(getattr(hvd, name)).parameters.values()]
    wanted = SIGNATURES[name].split(", ") if SIGNATURES[name] else []
    assert parameters[: len(wanted)] == wanted
    # More may follow, with defaults.
    assert all("=" in p or p in DEFAULTS for p in parameters[len(wanted) :])


def test_names():
    questions = (
        "is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous mpi_threads_supported "
        "mpi_enabled gloo_enabled mpi_built gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built "
        "start_timeline stop_timeline dump add_process_set remove_process_set ProcessSet HorovodInternalError"
    )
    missing = [name for name in questions.split() if not hasattr(hvd, name)]
    assert not missing
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    assert all(hasattr(hvd, name) for name in hvd.__all__)


def test_deep_path_and_basics():
    from horovod.torch import mpi_ops

    assert mpi_ops.synchronize is hvd.synchronize
    assert mpi_ops.poll is hvd.poll
    for name in ("init", "rank", "size", "mpi_enabled", "_get_process_set_ids_and_ranks"):
        assert callable(getattr(mpi_ops._basics, name))


def test_import_without_torch_says_what_to_install():
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import horovod.torch\nexcept ImportError as e:\n    print(e)\nelse:\n    print('imported')"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "pip install torch" in out
