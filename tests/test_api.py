"""Public names of all frontends, with the order and defaults of their parameters.

Each frontend is imported in a worker process of its own kind, so this file needs no framework. MXNet has a separate
environment, in which the other frontends are skipped.
"""

import importlib
import inspect
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.later import need
from tests.pool import JAX, KERAS, MXNET, PLAIN, TENSORFLOW, TORCH

PAGE = Path(__file__).resolve().parents[1] / "docs/api/mxnet.md"
KINDS = {  # by frontend: module, kind of its processes, and required packages
    "numpy": ("horovod.numpy", PLAIN, "numpy"),
    "torch": ("horovod.torch", TORCH, "torch"),
    "tensorflow": ("horovod.tensorflow", TENSORFLOW, "tensorflow"),
    "jax": ("horovod.jax", JAX, "jax"),
    "mxnet": ("horovod.mxnet", MXNET, "mxnet"),
    "keras, on tensorflow": ("horovod.keras", KERAS["tensorflow"], "tensorflow"),
    "keras, on torch": ("horovod.keras", KERAS["torch"], "torch"),
    "keras, on jax": ("horovod.keras", KERAS["jax"], "jax"),
    "tensorflow.keras": ("horovod.tensorflow.keras", KERAS["tensorflow"], "tensorflow"),
}

BASICS = """init shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous
start_timeline stop_timeline dump"""
JOB = f"{BASICS} Average Sum ProcessSet global_process_set add_process_set remove_process_set Compression"
BUILD = """mpi_threads_supported mpi_enabled gloo_enabled mpi_built gloo_built nccl_built ddl_built ccl_built cuda_built
rocm_built"""
OPS = "Adasum Min Max Product HorovodInternalError"
NAMES = {
    "numpy": f"{JOB} {BUILD} {OPS} Handle",
    "torch": f"{JOB} {BUILD} {OPS}",
    "tensorflow": f"{JOB} {BUILD} Adasum Min Max Product PartialDistributedGradientTape LocalGradientAggregationHelper "
    "check_num_rank_power_of_2 handle_average_backwards_compatibility gpu_available vars_to_refs refs_to_vars "
    "_executing_eagerly elastic.TensorFlowState",
    "jax": f"{JOB} {OPS} max_size should_stop allreduce grouped_allreduce allgather grouped_allgather broadcast "
    "alltoall reducescatter grouped_reducescatter barrier broadcast_object allgather_object broadcast_parameters "
    "check_in_sync DistributedOptimizer elastic step stats report log_stats value_and_grad grad",
    "mxnet": f"{JOB} {BUILD} {OPS} compression.FP16Compressor compression.NoneCompressor compression.Compressor "
    "functions.broadcast_object mpi_ops",
    "keras": f"{JOB} {BUILD} callbacks elastic.KerasState",
}
ABSENT = {"jax": "join", "mxnet": "join", "numpy": "alreduce", "tensorflow": "no_such_name"}

# Only parameters named `compression` and `process_set` default to Compression.none and the set of all ranks.
SCALE = "prescale_factor=1.0 postscale_factor=1.0"
REDUCE = f"average=None name=None op=None {SCALE} process_set"
REDUCE_COMP = f"average=None name=None compression op=None {SCALE} process_set"
MOVE = "name=None process_set"
_SCATTER = f"op=0 process_set {SCALE}"
TORCH_PARAMETERS = {
    "init": "comm=None process_sets=None",
    "shutdown": "",
    "allreduce": f"tensor {REDUCE_COMP}",
    "grouped_allreduce": f"tensors {REDUCE_COMP}",
    **{f"allreduce{form}": f"tensor {REDUCE}" for form in ("_async", "_", "_async_")},
    **{f"grouped_allreduce{form}": f"tensors {REDUCE}" for form in ("_async", "_", "_async_")},
    **{f"allgather{form}": f"tensor {MOVE}" for form in ("", "_async")},
    **{f"grouped_allgather{form}": f"tensors {MOVE}" for form in ("", "_async")},
    **{f"broadcast{form}": f"tensor root_rank {MOVE}" for form in ("", "_", "_async", "_async_")},
    **{f"alltoall{form}": f"tensor splits=None {MOVE}" for form in ("", "_async")},
    "reducescatter": f"tensor name=None compression {_SCATTER}",
    "reducescatter_async": f"tensor name=None {_SCATTER}",
    "grouped_reducescatter": f"tensors name=None compression {_SCATTER}",
    "grouped_reducescatter_async": f"tensors name=None {_SCATTER}",
    "join": "device=-1",
    "barrier": "process_set",
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params root_rank",
    "broadcast_object": "obj root_rank=0 name=None process_set",
    "allgather_object": "obj name=None",
}
SYNC = "batches policy='pad' weight=None"
DEVICES = "device_dense='' device_sparse=''"
SCOPE = "ignore_name_scope=False"
SET_SCOPE = f"process_set {SCOPE}"
TAPE = (
    f"gradtape {DEVICES} compression sparse_as_dense=False op=0 gradient_predivide_factor=1.0 num_groups=0 groups=None "
    "process_set scale_local_gradients=True"
)
MX_REDUCE = f"average=None name=None priority=0 {SCALE} process_set op=None"
MX_MOVE = "name=None priority=0 process_set"
KERAS_PARAMETERS = {
    "allreduce": "value name=None average=None prescale_factor=1.0 postscale_factor=1.0 op=None compression",
    "allgather": "value name=None",
    "broadcast": "value root_rank name=None",
    "reducescatter": "value name=None op=0",
    "broadcast_global_variables": "root_rank",
    "load_model": "filepath custom_optimizers=None custom_objects=None compression legacy_opts=False",
    "callbacks.BroadcastGlobalVariablesCallback": "root_rank device='' local_variables=None",
    "callbacks.MetricAverageCallback": "device=''",
    "callbacks.LearningRateScheduleCallback": "initial_lr multiplier start_epoch=0 end_epoch=None staircase=True "
    "momentum_correction=True steps_per_epoch=None",
    "callbacks.LearningRateWarmupCallback": "initial_lr warmup_epochs=5 momentum_correction=True steps_per_epoch=None "
    "verbose=0",
}
OPTIMIZER = f"optimizer name=None {DEVICES} compression sparse_as_dense=False gradient_predivide_factor=1.0 op=0"
PASSES = "backward_passes_per_step=1 average_aggregated_gradients=False"
PARAMETERS = {
    "numpy": {**TORCH_PARAMETERS, "broadcast_parameters": "params root_rank=0", "sync": SYNC},
    "torch": {
        **TORCH_PARAMETERS,
        "sparse_allreduce_async": "tensor name op process_set",
        "broadcast_optimizer_state": "optimizer root_rank model=None",
        "DistributedOptimizer": "optimizer named_parameters=None compression backward_passes_per_step=1 op=0 "
        "gradient_predivide_factor=1.0 num_groups=0 groups=None sparse_as_dense=False process_set",
        "ShardedOptimizer": "optimizer named_parameters=None compression backward_passes_per_step=1 op=0 "
        "elementwise=False process_set overlap=None",
        "LocalSGD": "optimizer every synchronous_steps=0 wire=None process_set",
        "DiLoCo": "optimizer outer=None every=500 fragments=1 overlap=0 wire=None mixing=0.0 process_set",
        "Gossip": "optimizer graph='exponential' push_sum=True every=1 average_every=0 wire=None process_set",
        "ParameterServer": "optimizer servers=1 mode='sync' staleness=None every=1 rate=None damping=False wire=None "
        "timeout=600.0",
        "sync": SYNC,
        "SyncBatchNorm": "num_features eps=1e-05 momentum=0.1 affine=True track_running_stats=True",
    },
    "tensorflow": {
        "init": "comm=None process_sets=None",
        "shutdown": "",
        "allreduce": f"tensor average=None {DEVICES} compression op=None {SCALE} name=None {SET_SCOPE}",
        "grouped_allreduce": f"tensors average=None {DEVICES} compression op=None {SCALE} {SET_SCOPE} name=None",
        "reducescatter": f"tensor device_dense='' compression op=0 name=None {SET_SCOPE} {SCALE}",
        "grouped_reducescatter": f"tensors device_dense='' compression op=0 process_set {SCALE}",
        "allgather": f"tensor name=None {SCOPE} process_set",
        "grouped_allgather": f"tensors name=None {SCOPE} process_set",
        "broadcast": f"tensor root_rank name=None {SCOPE} process_set",
        "broadcast_": "variables root_rank name=None process_set",
        "alltoall": f"tensor splits=None name=None {SCOPE} process_set",
        "join": "",
        "size_op": "process_set_id=0 name=None",
        "process_set_included_op": "process_set_id=0 name=None",
        **{f"{ask}_op": "name=None" for ask in ("rank", "local_rank", "local_size")},
        "broadcast_variables": "variables root_rank process_set inplace=False",
        "broadcast_object": "obj root_rank=0 session=None name=None process_set",
        "broadcast_object_fn": "root_rank=0 session=None name=None process_set",
        "allgather_object": "obj session=None name=None process_set",
        "broadcast_global_variables": "root_rank",
        "BroadcastGlobalVariablesHook": "root_rank device=''",
        "DistributedOptimizer": f"optimizer name=None use_locking=False {DEVICES} compression sparse_as_dense=False "
        "backward_passes_per_step=1 op=0 gradient_predivide_factor=1.0 average_aggregated_gradients=False num_groups=0 "
        "groups=None process_set scale_local_gradients=True",
        "DistributedGradientTape": TAPE,
        "PartialDistributedGradientTape": TAPE.replace("scale_local", "local_layers=None scale_local"),
        "SyncBatchNormalization": "fused=False kwargs",
        "sync": SYNC,
    },
    "jax": {"sync": SYNC},
    "mxnet": {
        "init": "comm=None process_sets=None",
        "shutdown": "",
        **{f"allreduce{form}": f"tensor {MX_REDUCE}" for form in ("", "_")},
        **{f"grouped_allreduce{form}": f"tensors {MX_REDUCE}" for form in ("", "_")},
        "allgather": f"tensor {MX_MOVE}",
        "grouped_allgather": f"tensors {MX_MOVE}",
        **{f"broadcast{form}": f"tensor root_rank {MX_MOVE}" for form in ("", "_")},
        "alltoall": f"tensor splits=None {MX_MOVE}",
        "reducescatter": f"tensor op=0 {MX_MOVE} {SCALE}",
        "grouped_reducescatter": f"tensors op=0 {MX_MOVE} {SCALE}",
        "DistributedOptimizer": "optimizer gradient_predivide_factor=1.0 num_groups=0 process_set",
        "DistributedTrainer": "params optimizer optimizer_params=None compression gradient_predivide_factor=1.0 "
        "prefix=None num_groups=0 process_set",
        "broadcast_parameters": "params root_rank=0 prefix=None",
        "broadcast_object": "obj root_rank=0 name=None",
        "allgather_object": "obj name=None",
    },
    "keras": {
        **KERAS_PARAMETERS,
        "DistributedOptimizer": f"{OPTIMIZER} num_groups=0 groups=None",
        "PartialDistributedOptimizer": f"{OPTIMIZER} {PASSES} groups=None process_set local_layers=None "
        "scale_local_gradients=True",
        "callbacks.BestModelCheckpoint": "monitor='val_loss' verbose=0 mode='auto' save_freq='epoch'",
    },
    "tensorflow.keras": {
        **KERAS_PARAMETERS,
        "DistributedOptimizer": f"{OPTIMIZER} {PASSES} num_groups=0 groups=None process_set scale_local_gradients=True",
        "callbacks.BestModelCheckpoint": "monitor='val_loss' verbose=0 save_weights_only=False mode='auto' "
        "save_freq='epoch'",
    },
}


def job(fleets, frontend):
    """Return (a single-rank job in which the frontend can be imported, the frontend's module)."""
    module, kind, needed = KINDS[frontend]
    names = [needed, "keras"] if "keras" in frontend else [needed]
    need(*names)
    return fleets.maker(kind)(1, initialized=False), module


def check(module, names, absent, parameters):
    hvd = importlib.import_module(module)
    assert [name for name in (*names.split(), *hvd.__all__) if not _has(hvd, name)] == []
    assert len(set(hvd.__all__)) == len(hvd.__all__)
    assert (hvd.Average, hvd.Sum) == (0, 1)
    if hasattr(hvd, "Product"):
        assert (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (2, 3, 4, 5)
    with pytest.raises(AttributeError, match=rf"{absent}"):
        getattr(hvd, absent)
    defaults = {"process_set": hvd.global_process_set, "compression": hvd.Compression.none}

    def written(parameter):
        if parameter.default is parameter.empty:
            return parameter.name
        if parameter.default is defaults.get(parameter.name, defaults):
            return parameter.name
        return f"{parameter.name}={parameter.default!r}"

    for name, text in parameters.items():
        found = list(inspect.signature(operator.attrgetter(name)(hvd)).parameters.values())
        expected = text.split()
        assert [written(one) for one in found[: len(expected)]] == expected, name
        assert all(one.default is not one.empty for one in found[len(expected) :]), (
            f"{name}: more may follow, with defaults"
        )


def _has(hvd, name):
    try:
        operator.attrgetter(name)(hvd)
    except AttributeError:
        return False
    return True


HEAVY = ("keras, on torch", "keras, on jax")


@pytest.mark.parametrize("frontend", [pytest.param(one, marks=[pytest.mark.heavy] * (one in HEAVY)) for one in KINDS])
def test_names_and_parameters(fleets, frontend):
    process, module = job(fleets, frontend)
    key = "keras" if frontend.startswith("keras") else frontend
    names = NAMES.get(key, NAMES["keras"])
    process.run(check, module, names, ABSENT.get(key, "no_such_name"), PARAMETERS[key])


def names_of_numpy_and_torch():
    import horovod.numpy
    import horovod.torch

    numpy, torch = horovod.numpy, horovod.torch
    for name in set(numpy.__all__) & set(torch.__all__):
        one, other = getattr(numpy, name), getattr(torch, name)
        if inspect.isroutine(one):
            assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters), name
    return set(torch.__all__) - set(numpy.__all__), set(numpy.__all__) - set(torch.__all__)


def test_plain_arrays_have_the_names_and_arguments_of_pytorch(fleets):
    process, _ = job(fleets, "torch")
    ((lacking, more),) = process.run(names_of_numpy_and_torch)
    assert lacking == {  # gradients, modules and sparse tensors do not exist for arrays
        *("DistributedOptimizer", "SyncBatchNorm", "broadcast_optimizer_state", "empty_shared", "in_shared_memory"),
        *("profile", "weight"),
        *("sparse_allreduce_async", "DiLoCo", "Gossip", "LocalSGD", "ParameterServer", "ShardedOptimizer"),
        *("EvalSampler", "Sampler", "compute_metric", "load_checkpoint", "save_checkpoint"),
    }
    assert more == {"Handle"}


def older_paths(module, paths):
    """Import the paths and names that other software uses, such as those of `mpi_ops`."""
    hvd, mpi_ops, *_ = (importlib.import_module(f"horovod.{path}") for path in (module, f"{module}.mpi_ops", *paths))
    assert mpi_ops.allgather is hvd.allgather
    assert mpi_ops._basics.is_initialized() is hvd.is_initialized()
    for name in f"{BASICS} {BUILD} _get_process_set_ids_and_ranks".split():
        assert callable(getattr(mpi_ops._basics, name))


@pytest.mark.parametrize(
    ("frontend", "paths"),
    [
        ("torch", "torch.elastic torch.elastic.sampler torch.elastic.state"),
        ("tensorflow", "tensorflow.util tensorflow.elastic tensorflow.data.compute_service tensorflow.keras.elastic "
         "keras.elastic"),
        ("mxnet", "mxnet.compression mxnet.functions"),
    ],
)  # fmt: skip
def test_older_paths(fleets, frontend, paths):
    process, _ = job(fleets, frontend)
    process.run(older_paths, frontend, paths.split())


def output(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


NO_LIBRARY = "import pathlib, horovod.common.frontends as n; n.library_path = lambda name: pathlib.Path('/no/such.so')"


@pytest.mark.parametrize(
    ("frontend", "broken", "message"),
    [
        ("torch", "sys.modules['torch'] = None", "pip install torch"),
        ("tensorflow", "sys.modules['tensorflow'] = None", "pip install tensorflow"),
        pytest.param("tensorflow", NO_LIBRARY, "such", marks=pytest.mark.heavy),
        pytest.param(
            "tensorflow.keras",
            "import os; os.environ['KERAS_BACKEND'] = 'torch'",
            "KERAS_BACKEND=tensorflow",
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_failed_imports_report_the_reason(frontend, broken, message):
    module, _, needed = KINDS[frontend]
    need(needed, *(["torch", "keras"] if "keras" in frontend else []))
    printed = output(f"import sys\n{broken}\ntry:\n    import {module}\nexcept ImportError as error:\n    print(error)")
    assert message in printed


BEFORE_INIT = """
import sys
import numpy as np
import {module} as hvd
value = np.ones(2, "float32")
for call in (hvd.rank, hvd.barrier, lambda: hvd.allreduce(value), lambda: hvd.allgather_object(1)):
    try:
        call()
    except ValueError as error:
        assert "hvd.init()" in str(error), error
    else:
        raise AssertionError(call)
hvd.init()
hvd.allreduce(value)
print({others} & set(sys.modules))
"""


@pytest.mark.parametrize("frontend", ["numpy", "jax"])
def test_nothing_works_before_init_and_no_other_framework_is_imported(frontend):
    module, _, needed = KINDS[frontend]
    need(needed)
    modules = {"torch", "tensorflow", "keras", "optax", "flax"} | (
        {"jax", "ml_dtypes"} if frontend == "numpy" else set()
    )
    assert output(BEFORE_INIT.format(module=module, others=modules)).strip() == "set()"


def names_of_mxnet():
    import horovod.mxnet
    from horovod import _absent as absent
    from horovod.common import frontends

    assert set(horovod.mxnet.__all__) >= absent.IN_FRONTENDS - {"join", "barrier"}
    assert frontends.MXNET.number == 4  # bindings/mxnet/call.h
    return horovod.mxnet.__all__


def test_the_mxnet_page_lists_all_names_and_parameters(fleets):
    process, _ = job(fleets, "mxnet")
    (names,) = process.run(names_of_mxnet)
    if not PAGE.exists():
        pytest.skip("the documents are not here")
    text = PAGE.read_text()
    assert [name for name in names if f"`{name}" not in text] == []
    for name, parameters in PARAMETERS["mxnet"].items():
        found = re.search(rf"`{name}\((.*?)\)`", text)
        assert found, name
        # The page shows Average for 0, and the values of the other two defaults.
        plain = re.sub(r"=(global_process_set|Compression.none)", "", found[1]).replace("op=Average", "op=0")
        assert plain.split(", ")[: len(parameters.split())] == parameters.split(), name


SPARK_COMMON = "Store AbstractFilesystemStore FilesystemStore LocalStore HDFSStore DBFSLocalStore"
PATHS = {  # besides the packages themselves; only paths that outside programs use
    "horovod.common.elastic": "run_fn ObjectState State notification_manager",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError",
    "horovod.common.util": "extension_available gpu_available mpi_built gloo_built nccl_built ddl_built ccl_built "
    "_cache env split_list num_rank_is_power_2 is_iterable check_extension check_installed_version get_ext_suffix "
    "is_version_greater_equal_than get_average_backwards_compatibility_fun",
    "horovod.runner.common.service.compute_service": "ComputeService ComputeClient",
    "horovod.runner.common.util.env": "get_env_rank_and_size",
    "horovod.runner.elastic.worker": "HostUpdateResult",
    "horovod.runner.launch": "run_commandline",
    "horovod.spark.task": "get_available_devices",
    "horovod.spark.conf": "SPARK_CONF_DEFAULT_VALUES",
    "horovod.spark.common.backend": "Backend SparkBackend default_num_proc",
    "horovod.spark.common.store": SPARK_COMMON,
    "horovod.spark.common.estimator": "HorovodEstimator HorovodModel",
    "horovod.spark.common.params": "EstimatorParams ModelParams",
    "horovod.spark.common.datamodule": "DataModule",
    "horovod.spark.keras.estimator": "KerasEstimator KerasModel",
    "horovod.spark.keras.datamodule": "PetastormDataModule NVTabularDataModule",
    "horovod.spark.torch.estimator": "TorchEstimator TorchModel",
    "horovod.spark.torch.datamodule": "PetastormDataModule NVTabularDataModule MapIterable",
    "horovod.spark.lightning.estimator": "TorchEstimator TorchModel",
    "horovod.spark.lightning.datamodule": "PetastormDataModule PETASTORM_HDFS_DRIVER",
    "horovod.spark.data_loaders.pytorch_data_loaders": "PytorchDataLoader PytorchAsyncDataLoader",
    "horovod.ray.runner": "RayExecutor BaseHorovodWorker",
    "horovod.ray.worker": "BaseHorovodWorker",
    "horovod.ray.elastic": "ElasticRayExecutor RayHostDiscovery TestDiscovery",
    "horovod.ray.elastic_v2": "RayHostDiscovery TestDiscovery",
    "horovod.ray.ray_logger": "log configure",
}


@pytest.mark.heavy
@pytest.mark.parametrize("module", PATHS)
def test_documented_import_paths(module):
    torch = dict.fromkeys(("torch", "pytorch", "lightning"), "torch")
    needed = {"ray": "ray", "spark": "pyspark", "keras": "keras", **torch}
    for part in needed.keys() & set(module.replace("_", ".").split(".")):
        pytest.importorskip(needed[part])
    found = importlib.import_module(module)
    assert [name for name in PATHS[module].split() if not hasattr(found, name)] == []
