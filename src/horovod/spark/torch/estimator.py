"""Estimator and model for PyTorch (TorchEstimator and TorchModel), with their additional params."""

import copy
from typing import Any

import torch

from horovod.spark.common import checks
from horovod.spark.common.checks import refuse
from horovod.spark.common.estimator import HorovodEstimator, HorovodModel
from horovod.spark.common.params import Row, pickled, with_params, with_signature
from horovod.spark.common.plan import TrainingResult
from horovod.spark.common.predict import Predict
from horovod.spark.torch import remote
from horovod.spark.torch.datamodule import PetastormDataModule
from horovod.spark.torch.losses import as_list

TORCH = (
    Row("loss_constructors", "a function that returns the loss, or a list of one for each label, in place of loss"),
    Row("input_shapes", "shape of each feature, with -1 for the rows: [[-1, 1, 28, 28]]", None, checks.shapes),
    Row("train_minibatch_fn", "a function that takes a step, in place of the built-in one", None, checks.function),
)
TORCH_MODEL = (
    Row("input_shapes", "shape of each feature, with -1 for the rows", None, checks.shapes),
    Row("optimizer", "the optimizer, with its state"),
    Row("loss", "the loss, or a list of one for each label"),
    Row("loss_constructors", "a function that returns the loss, or a list of one for each label"),
)


_ORDER = (
    "num_proc data_module model backend store optimizer loss loss_constructors metrics loss_weights sample_weight_col "
    "gradient_compression feature_cols continuous_cols categorical_cols input_shapes validation label_cols callbacks "
    "batch_size val_batch_size epochs verbose random_seed shuffle_buffer_size shuffle partitions_per_process run_id "
    "train_minibatch_fn train_steps_per_epoch validation_steps_per_epoch transformation_fn train_reader_num_workers "
    "val_reader_num_workers reader_pool_type label_shapes"
)


def named_metrics(metrics: list[Any], labels: list[str]) -> list[tuple[str, Any, int]]:
    """Return a tuple of name, function and output index for each metric.

    Args:
        metrics: Functions that are applied to all outputs, or a list of functions for each label.
        labels: Names of the labels.

    Raises:
        ValueError: If ``metrics`` has any other form.
    """  # noqa: DOC501
    lists = [one for one in metrics if isinstance(one, (list, tuple))]
    if lists and (len(lists) != len(metrics) or len(metrics) != len(labels)):
        raise refuse("metrics", metrics, f"a list of functions, or a list of such for each of {len(labels)} label_cols")
    given = [list(one) for one in metrics] if lists else [list(metrics)] * len(labels)
    made = []
    for place, (label, functions) in enumerate(zip(labels, given, strict=True)):
        for function in functions:
            if not callable(function):
                raise refuse("metrics", metrics, "functions of an output and its label")
            name = getattr(function, "__name__", type(function).__name__)
            made.append((name if len(labels) == 1 else f"{label}_{name}", function, place))
    return made


@with_signature(_ORDER)
@with_params(*TORCH)
class TorchEstimator(HorovodEstimator):
    """Estimator that trains a torch.nn.Module on the ranks of a job.

    The model is called with the features in their order. It returns one output, or a tuple with an output for each
    label. ``loss`` and the metrics are called with an output and its label. Floating-point features and labels get the
    dtype of the model's parameters. Integer labels are int64. A callback takes the epoch's number and a dict of its
    metrics. It can also be an object with such a method ``on_epoch_end``.

    ``train_minibatch_fn(model, optimizer, transform_outputs, loss_fns, inputs, labels, sample_weights)`` performs a
    training step with ``optimizer.step()``, and returns the outputs and the loss. ``transform_outputs(result, labels)``
    converts the model's result to a list of outputs, and reshapes the labels to match the outputs. ``loss_fns``
    contains a function for each label.

    With ``backward_passes_per_step``, the last step of an epoch can have fewer batches.

    If arguments do not match, ``fit`` raises ValueError, usually before training.
    """

    _framework = "torch"
    _data_module = PetastormDataModule

    def _check(self) -> None:
        check_torch(self)
        if self.getTrainMinibatchFn() is not None and (passes := self.getBackwardPassesPerStep()) != 1:
            raise ValueError(
                "backward_passes_per_step must be 1 with a train_minibatch_fn, which takes a step with every batch, "
                f"got {passes}"
            )

    def _feature_shapes(self) -> tuple[Any, str]:
        return self.getInputShapes(), "input_shapes"

    def _payload(self) -> dict[str, Any]:
        names = ("model", "optimizer", "loss", "loss_constructors", "loss_weights", "callbacks", "input_shapes")
        given = {name: self.getOrDefault(name) for name in (*names, "gradient_compression", "train_minibatch_fn")}
        return {**given, "metrics": named_metrics(self.getMetrics(), self.getLabelCols())}

    def _train_in_rank(self) -> Any:
        from horovod.spark.torch.remote import train

        return train

    def _model_of(self, outcome: TrainingResult, run_id: str, metadata: dict[str, Any]) -> "TorchModel":
        return model_of(self, TorchModel, outcome, run_id, metadata)  # type: ignore[no-any-return]


def model_of(estimator: Any, kind: Any, outcome: TrainingResult, run_id: str, metadata: dict[str, Any]) -> Any:
    """Return a model of class ``kind`` with trained copies of the estimator's model and optimizer."""
    model, optimizer = copy.deepcopy((estimator.getModel(), estimator.getOptimizer()))
    remote.put_into(remote.load(outcome.model, "the ranks' result"), model, optimizer, "the ranks' result")
    return kind(
        history=outcome.history,
        model=model.eval(),
        feature_columns=estimator.getFeatureCols(),
        input_shapes=estimator.getInputShapes(),
        label_columns=estimator.getLabelCols(),
        optimizer=optimizer,
        run_id=run_id,
        _metadata=metadata,
        loss=estimator.getLoss(),
        loss_constructors=estimator.getLossConstructors(),
    )


def check_torch(estimator: Any) -> None:
    """Raise ValueError unless the estimator's model, optimizer, losses and shapes are valid and consistent."""
    model, optimizer = estimator.getModel(), estimator.getOptimizer()
    if not isinstance(model, torch.nn.Module):
        raise refuse("model", model, "a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise refuse("optimizer", optimizer, "a torch.optim.Optimizer of the model's parameters")
    own = {id(one) for one in model.parameters()}
    if any(id(one) not in own for group in optimizer.param_groups for one in group["params"]):
        raise ValueError(
            f"optimizer must have parameters of the model, got a {type(optimizer).__name__} with other parameters"
        )
    _check_losses(estimator)
    check_input_shapes(estimator)


def check_input_shapes(estimator: Any) -> None:
    """Raise ValueError if the param ``input_shapes`` is set but does not contain one shape for each feature."""
    shapes, features = estimator.getInputShapes(), estimator.getFeatureCols()
    if shapes is not None and len(shapes) != len(features):
        raise refuse("input_shapes", shapes, f"one shape for each of {len(features)} feature_cols")


def _check_losses(estimator: Any) -> None:
    loss, constructors, labels = estimator.getLoss(), estimator.getLossConstructors(), estimator.getLabelCols()
    if (loss is None) == (constructors is None):
        which = "neither" if loss is None else "both"
        raise ValueError(f"exactly one of loss and loss_constructors must be given, got {which}")
    name, given = ("loss", loss) if constructors is None else ("loss_constructors", constructors)
    functions = as_list(given)
    if not functions or not all(callable(one) for one in functions) or len(functions) not in (1, len(labels)):
        raise refuse(name, given, f"a function of an output and its label, or one for each of {len(labels)} label_cols")


@with_signature(
    "history model feature_columns input_shapes label_columns optimizer run_id _metadata loss loss_constructors"
)
@with_params(*TORCH_MODEL)
class TorchModel(HorovodModel):
    """Trained torch.nn.Module. Its ``transform`` method adds the model's outputs to a DataFrame."""

    def _predictor(self) -> tuple[Any, bytes]:
        model = self.getModel()
        return load_predictor, pickled(
            {"model": model, "shapes": self.getInputShapes(), "names": self.getFeatureColumns()}
        )


def load_predictor(payload: bytes) -> Predict:
    """Return a function that applies the model to arrays. Spark tasks call `load_predictor`."""
    import pickle

    from horovod.spark.torch.losses import floating_dtype, inputs_of, outputs_of

    given = pickle.loads(payload)
    model = given["model"].to("cpu").eval()
    dtype = floating_dtype(model)

    def predict(arrays: list[Any]) -> list[Any]:
        with torch.inference_mode():
            inputs = inputs_of(arrays, given["names"], given["shapes"], dtype, "cpu")
            return [one.numpy() for one in outputs_of(model(*inputs))]

    return predict
