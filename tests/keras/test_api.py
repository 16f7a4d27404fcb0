"""Names and signatures of horovod.keras and horovod.tensorflow.keras."""

import inspect
import subprocess
import sys

import pytest

COMMON = """init shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous
mpi_threads_supported mpi_enabled gloo_enabled mpi_built gloo_built ddl_built ccl_built cuda_built rocm_built nccl_built
start_timeline stop_timeline dump Average Sum ProcessSet global_process_set add_process_set remove_process_set
Compression callbacks DistributedOptimizer allreduce allgather broadcast reducescatter broadcast_global_variables
load_model"""

SIGNATURES = {
    "allreduce": "value name=None average=None prescale_factor=1.0 postscale_factor=1.0 op=None compression=none",
    "allgather": "value name=None",
    "broadcast": "value root_rank name=None",
    "reducescatter": "value name=None op=0",
    "broadcast_global_variables": "root_rank",
    "load_model": "filepath custom_optimizers=None custom_objects=None compression=none legacy_opts=False",
    "callbacks.BroadcastGlobalVariablesCallback": "root_rank device='' local_variables=None",
    "callbacks.MetricAverageCallback": "device=''",
    "callbacks.LearningRateScheduleCallback": "initial_lr multiplier start_epoch=0 end_epoch=None staircase=True "
    "momentum_correction=True steps_per_epoch=None",
    "callbacks.LearningRateWarmupCallback": "initial_lr warmup_epochs=5 momentum_correction=True steps_per_epoch=None "
    "verbose=0",
}
DEVICES = "optimizer name=None device_dense='' device_sparse='' compression=none sparse_as_dense=False "
OWN = {
    "horovod.keras": {
        "DistributedOptimizer": DEVICES + "gradient_predivide_factor=1.0 op=0 num_groups=0 groups=None",
        "PartialDistributedOptimizer": DEVICES + "gradient_predivide_factor=1.0 op=0 backward_passes_per_step=1 "
        "average_aggregated_gradients=False groups=None process_set=global local_layers=None "
        "scale_local_gradients=True",
        "callbacks.BestModelCheckpoint": "monitor='val_loss' verbose=0 mode='auto' save_freq='epoch'",
    },
    "horovod.tensorflow.keras": {
        "DistributedOptimizer": DEVICES + "gradient_predivide_factor=1.0 op=0 backward_passes_per_step=1 "
        "average_aggregated_gradients=False num_groups=0 groups=None process_set=global scale_local_gradients=True",
        "callbacks.BestModelCheckpoint": "monitor='val_loss' verbose=0 save_weights_only=False mode='auto' "
        "save_freq='epoch'",
    },
}


def check(name, common, signatures):
    import importlib
    import operator

    module = importlib.import_module(name)
    missing = [n for n in common.split() if not hasattr(module, n)]
    assert not missing
    assert set(module.__all__) <= set(dir(module))
    assert set(module.elastic.__all__) <= set(dir(module.elastic))
    assert module.elastic.KerasState.__module__ == f"{name}.elastic"
    if name == "horovod.keras":
        assert module.Adasum == 2

    def text(value):
        if value is module.Compression.none:
            return "none"
        return "global" if value is module.global_process_set else repr(value)

    for function, expected in signatures.items():
        parameters = inspect.signature(operator.attrgetter(function)(module)).parameters.values()
        found = [p.name if p.default is p.empty else f"{p.name}={text(p.default)}" for p in parameters]
        wanted = expected.split()
        assert found[: len(wanted)] == wanted, function
        assert all("=" in more for more in found[len(wanted) :]), function


@pytest.mark.parametrize("name", sorted(OWN))
def test_names_and_signatures(keras_pool, name):
    keras_pool("tensorflow")(1).run(check, name, COMMON, {**SIGNATURES, **OWN[name]})


def test_names_and_signatures_on_other_backends(keras3):
    keras3(1).run(check, "horovod.keras", COMMON, {**SIGNATURES, **OWN["horovod.keras"]})


def one_job():
    import horovod.keras as hvd
    import horovod.tensorflow as tensorflow
    import horovod.tensorflow.keras as tf_hvd

    assert hvd.size() == tf_hvd.size() == tensorflow.size() == 2
    import keras

    optimizer = tensorflow.DistributedOptimizer(keras.optimizers.SGD(1.0), op=tensorflow.Sum, groups=1)
    variable = keras.Variable([0.0, 0.0])
    optimizer.apply([keras.ops.ones(2)], [variable])
    assert keras.ops.convert_to_numpy(variable).tolist() == [-2.0, -2.0]
    # PyTorch takes part in the same job.
    torch = pytest.importorskip("torch")

    import horovod.torch as torch_hvd

    assert torch_hvd.allreduce(torch.ones(2), op=torch_hvd.Sum, name="DistributedSGD.0").tolist() == [2.0, 2.0]


def test_faces_share_the_job(keras_pool):
    keras_pool("tensorflow")(2).run(one_job)


WRONG = """
import os
os.environ["KERAS_BACKEND"] = "torch"
try:
    import horovod.tensorflow.keras
except ImportError as error:
    print(error)
"""


@pytest.mark.heavy  # imports three frameworks
def test_another_backend_is_refused_by_name():
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", WRONG], capture_output=True, text=True, timeout=120)
    assert "backend is 'torch'" in done.stdout, done.stderr
    assert "KERAS_BACKEND=tensorflow" in done.stdout
