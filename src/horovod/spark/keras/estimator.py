"""Estimator and model for Keras (KerasEstimator and KerasModel), with their additional params."""

from typing import Any

from horovod.spark.common import checks
from horovod.spark.common.checks import refuse
from horovod.spark.common.estimator import HorovodEstimator, HorovodModel
from horovod.spark.common.params import Row, pickled, with_params, with_signature
from horovod.spark.common.plan import TrainingResult
from horovod.spark.common.predict import Predict
from horovod.spark.keras import objects
from horovod.spark.keras.datamodule import PetastormDataModule
from horovod.spark.keras.remote import check_inputs, input_shapes

KERAS = (
    Row("custom_objects", "names of classes and functions that the model's file has", None, checks.mapping),
    Row("checkpoint_callback", "a ModelCheckpoint in place of a checkpoint of each epoch; what it keeps is the result"),
    Row(
        "backend_env",
        "environment of the ranks",
        {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"},
        checks.mapping,
    ),
)
KERAS_MODEL = (
    Row("custom_objects", "names of classes and functions that the model's file has", None, checks.mapping),
    Row("_floatx", "Keras' floating type of the model", None, checks.text),
)


_ORDER = (
    "num_proc data_module model backend store custom_objects optimizer loss loss_weights sample_weight_col "
    "gradient_compression metrics feature_cols label_cols continuous_cols categorical_cols validation callbacks "
    "batch_size val_batch_size epochs verbose random_seed shuffle_buffer_size shuffle partitions_per_process run_id "
    "train_steps_per_epoch validation_steps_per_epoch transformation_fn train_reader_num_workers "
    "val_reader_num_workers reader_pool_type label_shapes checkpoint_callback"
)


class _Packed:
    """Mixin that uses Keras' own methods to save the Keras objects among the params."""

    @classmethod
    def _packed(cls, objects_: dict[str, Any]) -> dict[str, Any]:
        return {name: objects.pack(value) if name in _OF_KERAS else value for name, value in objects_.items()}

    @classmethod
    def _unpacked(cls, objects_: dict[str, Any]) -> dict[str, Any]:
        custom = objects_.get("custom_objects")
        return {name: objects.unpack(value, custom) if name in _OF_KERAS else value for name, value in objects_.items()}


_OF_KERAS = ("model", "optimizer", "metrics")


@with_signature(_ORDER)
@with_params(*KERAS)
class KerasEstimator(_Packed, HorovodEstimator):
    """Estimator that trains a model of Keras 3 (any backend) or Keras 2 (tf_keras) on the ranks of a job.

    ``model``, ``optimizer``, ``loss``, ``metrics`` and ``callbacks`` have the same types as in Keras' ``compile`` and
    ``fit``. The ranks wrap the optimizer in a DistributedOptimizer. Without ``optimizer`` and ``loss``, the model must
    be compiled. Features are reshaped to the model's inputs. ``fit`` returns the model at the end of training, or the
    model that ``checkpoint_callback`` saved.

    If arguments do not match, ``fit`` raises ValueError, usually before training.
    """

    _framework = "keras"
    _data_module = PetastormDataModule

    def _feature_shapes(self) -> tuple[Any, str]:
        shapes = input_shapes(self.getModel())
        if shapes is None or any(shape.count(None) > 1 for shape in shapes):
            return None, ""
        return [[-1 if size is None else size for size in shape] for shape in shapes], "the model"

    def _check(self) -> None:
        model = self.getModel()
        keras = objects.module_of(model)
        if keras is None or not isinstance(model, keras.Model):
            raise refuse("model", model, "a model of Keras")
        optimizer, loss = self.getOptimizer(), self.getLoss()
        if (optimizer is None) != (loss is None):
            missing = "optimizer" if optimizer is None else "loss"
            raise ValueError(f"{missing} must be given: give both optimizer and loss, or neither with a compiled model")
        if optimizer is None and getattr(model, "optimizer", None) is None:
            raise ValueError("optimizer and loss are not given, and model is not compiled")
        if optimizer is not None and not isinstance(optimizer, (str, keras.optimizers.Optimizer)):
            raise refuse("optimizer", optimizer, f"an optimizer of {keras.__name__} {keras.__version__}, as the model")
        check_inputs(self.getFeatureCols(), input_shapes(model))
        callback = self.getCheckpointCallback()
        if callback is not None and getattr(callback, "save_weights_only", False):
            raise ValueError("checkpoint_callback must save the whole model, got save_weights_only=True")

    def _payload(self) -> dict[str, Any]:
        names = ("loss", "loss_weights", "callbacks", "custom_objects", "gradient_compression", "checkpoint_callback")
        given = {name: self.getOrDefault(name) for name in names}
        optimizer = self.getOptimizer()
        if isinstance(optimizer, str):
            optimizer = objects.module_of(self.getModel()).optimizers.get(optimizer)
        packed = {"model": self.getModel(), "optimizer": optimizer, "metrics": self.getMetrics()}
        return {**given, **objects.pack(packed)}

    def _train_in_rank(self) -> Any:
        from horovod.spark.keras.remote import train

        return train

    def _environment(self) -> dict[str, str]:
        keras = objects.module_of(self.getModel())
        legacy, backend = objects.is_legacy(keras), objects.backend_of(keras)
        return {**self.getBackendEnv(), **objects.environment_for(objects.PackedModel(legacy, backend, "", b""))}

    def _module_arguments(self) -> dict[str, Any]:
        return {"tensorflow_dataset_prefetch_buffer_size": self.getTensorflowDatasetPrefetchBufferSize()}

    def _model_of(self, outcome: TrainingResult, run_id: str, metadata: dict[str, Any]) -> "KerasModel":
        keras = objects.module_of(self.getModel())
        floatx = str(keras.backend.floatx())
        packed = objects.PackedModel(objects.is_legacy(keras), objects.backend_of(keras), floatx, outcome.model)
        return KerasModel(
            history=outcome.history,
            model=objects.unpack_model(packed, self.getCustomObjects()),
            feature_columns=self.getFeatureCols(),
            label_columns=self.getLabelCols(),
            custom_objects=self.getCustomObjects(),
            run_id=run_id,
            _metadata=metadata,
            _floatx=floatx,
        )


@with_signature("history model feature_columns label_columns custom_objects run_id _metadata _floatx")
@with_params(*KERAS_MODEL)
class KerasModel(_Packed, HorovodModel):
    """Trained Keras model. Its ``transform`` method adds the model's outputs to a DataFrame."""

    def _predictor(self) -> tuple[Any, bytes]:
        given = {"model": objects.pack_model(self.getModel()), "custom_objects": self.getCustomObjects()}
        return load_predictor, pickled({**given, "names": self.getFeatureColumns()})


def load_predictor(payload: bytes) -> Predict:
    """Return a function that applies the model to arrays. Spark tasks call `load_predictor`."""
    import os
    import pickle

    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from horovod.spark.keras.remote import input_shapes, inputs_of

    given = pickle.loads(payload)
    model = objects.unpack_model(given["model"], given["custom_objects"], compiled=False)
    shapes = input_shapes(model)

    def predict(arrays: list[Any]) -> list[Any]:
        result = model.predict_on_batch(inputs_of(arrays, given["names"], shapes))
        return list(result) if isinstance(result, (list, tuple)) else [result]

    return predict
