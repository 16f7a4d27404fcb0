"""Where programs of others import from, beside ``horovod.spark``, ``.keras``, ``.torch`` and ``.lightning``. Not here,
as nobody outside has used them: ``horovod.spark.runner``, ``common.util``, ``common.constants``, ``keras.util``."""

import importlib

import pytest

pytest.importorskip("pyspark")

PATHS = {
    "horovod.spark.task": ("get_available_devices",),
    "horovod.spark.conf": ("SPARK_CONF_DEFAULT_VALUES",),
    "horovod.spark.common.backend": ("Backend", "SparkBackend", "default_num_proc"),
    "horovod.spark.common.store": (
        *("Store", "AbstractFilesystemStore", "FilesystemStore", "LocalStore", "HDFSStore", "DBFSLocalStore"),
    ),
    "horovod.spark.common.estimator": ("HorovodEstimator", "HorovodModel"),
    "horovod.spark.common.params": ("EstimatorParams", "ModelParams"),
    "horovod.spark.common.datamodule": ("DataModule",),
    "horovod.spark.keras.estimator": ("KerasEstimator", "KerasModel"),
    "horovod.spark.keras.datamodule": ("PetastormDataModule", "NVTabularDataModule"),
}
OF_TORCH = {
    "horovod.spark.torch.estimator": ("TorchEstimator", "TorchModel"),
    "horovod.spark.torch.datamodule": ("PetastormDataModule", "NVTabularDataModule", "MapIterable"),
    "horovod.spark.lightning.estimator": ("TorchEstimator", "TorchModel"),
    "horovod.spark.lightning.datamodule": ("PetastormDataModule", "PETASTORM_HDFS_DRIVER"),
    "horovod.spark.data_loaders.pytorch_data_loaders": ("PytorchDataLoader", "PytorchAsyncDataLoader"),
}


@pytest.mark.parametrize("module", [*PATHS, *OF_TORCH])
def test_a_path_that_programs_use(module):
    if module in OF_TORCH:
        pytest.importorskip("torch")
    if ".keras" in module:
        pytest.importorskip("keras")
    found = importlib.import_module(module)
    assert [name for name in {**PATHS, **OF_TORCH}[module] if not hasattr(found, name)] == []
