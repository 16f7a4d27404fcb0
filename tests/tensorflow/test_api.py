"""The names that scripts use, with their parameters in order and their defaults."""

import inspect
import subprocess
import sys

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

DEVICES = "device_dense='', device_sparse=''"
SCALE = "prescale_factor=1.0, postscale_factor=1.0"
SCOPE = "ignore_name_scope=False"
TAPE = (
    f"gradtape, {DEVICES}, compression, sparse_as_dense=False, op=0, gradient_predivide_factor=1.0, num_groups=0, "
    "groups=None, process_set, scale_local_gradients=True"
)
SIGNATURES = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "allreduce": f"tensor, average=None, {DEVICES}, compression, op=None, {SCALE}, name=None, process_set, {SCOPE}",
    "grouped_allreduce": (
        f"tensors, average=None, {DEVICES}, compression, op=None, {SCALE}, process_set, {SCOPE}, name=None"
    ),
    "reducescatter": f"tensor, device_dense='', compression, op=0, name=None, process_set, {SCOPE}, {SCALE}",
    "grouped_reducescatter": f"tensors, device_dense='', compression, op=0, process_set, {SCALE}",
    "allgather": f"tensor, name=None, {SCOPE}, process_set",
    "grouped_allgather": f"tensors, name=None, {SCOPE}, process_set",
    "broadcast": f"tensor, root_rank, name=None, {SCOPE}, process_set",
    "broadcast_": "variables, root_rank, name=None, process_set",
    "alltoall": f"tensor, splits=None, name=None, {SCOPE}, process_set",
    "join": "",
    "size_op": "process_set_id=0, name=None",
    "process_set_included_op": "process_set_id=0, name=None",
    "rank_op": "name=None",
    "local_rank_op": "name=None",
    "local_size_op": "name=None",
    "broadcast_variables": "variables, root_rank, process_set, inplace=False",
    "broadcast_object": "obj, root_rank=0, session=None, name=None, process_set",
    "broadcast_object_fn": "root_rank=0, session=None, name=None, process_set",
    "allgather_object": "obj, session=None, name=None, process_set",
    "broadcast_global_variables": "root_rank",
    "BroadcastGlobalVariablesHook": "root_rank, device=''",
    "DistributedOptimizer": (
        f"optimizer, name=None, use_locking=False, {DEVICES}, compression, sparse_as_dense=False, "
        "backward_passes_per_step=1, op=0, gradient_predivide_factor=1.0, average_aggregated_gradients=False, "
        "num_groups=0, groups=None, process_set, scale_local_gradients=True"
    ),
    "DistributedGradientTape": TAPE,
    "PartialDistributedGradientTape": TAPE.replace("scale_local", "local_layers=None, scale_local"),
    "SyncBatchNormalization": "fused=False, kwargs",
}
DEFAULTS = {"process_set": hvd.global_process_set, "compression": hvd.Compression.none}


def _written(parameter):
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    if parameter.name in DEFAULTS:
        assert parameter.default is DEFAULTS[parameter.name]
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters(name):
    parameters = [_written(p) for p in inspect.signature(getattr(hvd, name)).parameters.values()]
    wanted = SIGNATURES[name].split(", ") if SIGNATURES[name] else []
    assert parameters[: len(wanted)] == wanted
    # More may follow, with defaults.
    assert all("=" in p or p in DEFAULTS for p in parameters[len(wanted) :])


def test_names():
    names = (
        "is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous mpi_threads_supported "
        "mpi_enabled gloo_enabled mpi_built gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built "
        "start_timeline stop_timeline dump add_process_set remove_process_set ProcessSet global_process_set "
        "PartialDistributedGradientTape LocalGradientAggregationHelper check_num_rank_power_of_2 "
        "handle_average_backwards_compatibility gpu_available vars_to_refs refs_to_vars _executing_eagerly"
    )
    missing = [name for name in names.split() if not hasattr(hvd, name)]
    assert not missing
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    assert issubclass(hvd.BroadcastGlobalVariablesHook, tf.compat.v1.train.SessionRunHook)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = hvd.no_such_name
    assert hvd.elastic.TensorFlowState.__module__ == "horovod.tensorflow.elastic"


def test_small_helpers():
    assert [n for n in range(10) if hvd.check_num_rank_power_of_2(n)] == [1, 2, 4, 8]
    assert hvd.handle_average_backwards_compatibility(hvd.Max, None) == hvd.Max
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.handle_average_backwards_compatibility(None, False) == hvd.Sum
    assert isinstance(hvd.gpu_available("tensorflow"), bool)
    assert hvd._executing_eagerly()
    seen = []
    tf.function(lambda: seen.append(hvd._executing_eagerly()))()
    assert seen == [False]


def test_deep_paths_and_basics():
    from horovod.tensorflow import mpi_ops, util

    assert mpi_ops.allgather is hvd.allgather
    assert util._executing_eagerly() is True
    for name in ("init", "rank", "size", "mpi_enabled", "_get_process_set_ids_and_ranks"):
        assert callable(getattr(mpi_ops._basics, name))


def test_bad_arguments_travel_between_processes():
    import pickle

    from horovod.tensorflow._library import ArgumentError

    error = pickle.loads(pickle.dumps(ArgumentError("what is wrong")))
    assert isinstance(error, ValueError)
    assert isinstance(error, tf.errors.InvalidArgumentError)
    assert "what is wrong" in str(error)
    assert error.message == "what is wrong"


def test_compressors_of_ones_own_have_to_say_what_they_do():
    from horovod.tensorflow.compression import Compressor

    with pytest.raises(NotImplementedError, match=r"compress\(tensor\)"):
        Compressor.compress(tf.ones([1]))
    with pytest.raises(NotImplementedError, match="decompress"):
        Compressor.decompress(tf.ones([1]), None)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("sys.modules['tensorflow'] = None", "pip install tensorflow"),
        (
            "import pathlib, horovod.common.native as n; n.library_path = lambda name: pathlib.Path('/no/such.so')",
            "such",
        ),
    ],
)
def test_what_cannot_be_imported_says_why(broken, said):
    script = (
        f"import sys\n{broken}\n"
        "try:\n    import horovod.tensorflow\nexcept ImportError as e:\n    print(e)\nelse:\n    print('imported')"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True).stdout
    assert said in out
    assert "horovod.tensorflow" in out
