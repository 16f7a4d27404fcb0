"""Training function that each rank of a KerasEstimator calls."""

import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from horovod.common.contract.log import warn_user
from horovod.spark.common.columns import fits
from horovod.spark.common.plan import TrainingPlan, TrainingResult, own_gpu, pick, prepare_rank, reshaped
from horovod.spark.keras import objects

# -- inputs of models, without importing Keras -----------------------------------------------------------------------

Shape = tuple[int | None, ...]


def input_shapes(model: Any) -> list[Shape] | None:
    """Return the shapes of the model's inputs without the batch dimension, or None if they are unknown."""
    inputs = getattr(model, "inputs", None)
    return None if not inputs else [tuple(one.shape[1:]) for one in inputs]


def check_inputs(names: Sequence[str], shapes: Sequence[Shape] | None) -> None:
    """Raise ValueError if the model's number of inputs is known and differs from the number of features."""
    if shapes is not None and len(shapes) != len(names):
        raise ValueError(
            f"feature_cols must have a column for each of the model's {len(shapes)} inputs, got {list(names)}; a "
            "VectorAssembler combines several columns into one"
        )


def inputs_of(values: Sequence[Any], names: Sequence[str], shapes: Sequence[Shape] | None) -> Any:
    """Return the features, reshaped to match the model's inputs. Multiple features are returned as a tuple.

    Raises:
        ValueError: If a feature cannot be reshaped.
    """
    check_inputs(names, shapes)
    inputs = []
    if shapes is None:
        inputs = list(values)
    else:
        for name, value, shape in zip(names, values, shapes, strict=True):
            wanted = [-1 if size is None else size for size in shape]
            if wanted.count(-1) <= 1:
                if not fits(value.shape[1:], wanted):
                    raise ValueError(
                        f"feature {name!r} must have rows of the model's input shape {shape}, got {value.shape[1:]}"
                    )
                value = reshaped(value, wanted)
            inputs.append(value)
    return inputs[0] if len(inputs) == 1 else tuple(inputs)


def for_fit(batch: dict[str, Any], plan: TrainingPlan, shapes: Sequence[Shape] | None) -> tuple[Any, ...]:
    """Return a tuple of inputs, labels and, if there is a weight column, the weights of the rows."""
    inputs = inputs_of(pick(batch, plan.features, "feature_cols"), plan.features, shapes)
    labels = []
    for number, value in enumerate(pick(batch, plan.labels, "label_cols")):
        labels.append(reshaped(value, None if plan.label_shapes is None else plan.label_shapes[number]))
    targets = labels[0] if len(labels) == 1 else tuple(labels)
    if plan.weight is None:
        return inputs, targets
    weights = pick(batch, [plan.weight], "sample_weight_col")[0]
    return inputs, targets, weights if len(labels) == 1 else tuple(weights for _ in labels)


def train(plan: TrainingPlan) -> TrainingResult | None:
    """Train on this rank. Return the TrainingResult on rank 0, and None on all other ranks."""
    if not plan.use_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    payload = pickle.loads(plan.payload)
    keras = objects.import_keras_for(payload["model"])
    import horovod.keras as hvd

    hvd.init()
    try:
        prepare_rank(plan, hvd.rank())
        keras.backend.set_floatx(payload["model"].floatx)
        if plan.seed is not None:
            keras.utils.set_random_seed((plan.seed + hvd.rank()) % (1 << 32))  # NumPy accepts only 32-bit seeds.
        if plan.use_gpu:
            _take_gpu(objects.backend_of(keras), hvd.local_rank())
        with plan.open_data(hvd.rank(), hvd.size()) as data:
            return _fit(plan, payload, keras, hvd, data)
    finally:
        hvd.shutdown()


def _fit(plan: TrainingPlan, payload: dict[str, Any], keras: Any, hvd: Any, data: Any) -> TrainingResult | None:
    model = _model(plan, payload, hvd)
    shapes = input_shapes(model)
    first: list[Any] = []
    keeper = _keeper(plan, payload, keras) if hvd.rank() == 0 else None
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        *payload["callbacks"],
        *(keeper.callbacks if keeper is not None else ()),
    ]
    val = {}
    if plan.val is not None:
        val = {"validation_data": _repeated(keras, _tuples(data.val_data(), plan, shapes, []), plan.val_steps)}
    history = model.fit(
        _tuples(data.train_data(), plan, shapes, first),
        steps_per_epoch=plan.steps,
        epochs=plan.epochs,
        shuffle=False,  # Keras does not need to shuffle, because the reader has already shuffled the rows.
        callbacks=callbacks,
        verbose=plan.verbose if hvd.rank() == 0 else 0,
        **val,
    )
    if keeper is None:
        return None
    figures = {name: [float(value) for value in values] for name, values in history.history.items()}
    outputs = model.predict_on_batch(first[0])
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    about = [(tuple(one.shape[1:]), str(one.dtype)) for one in outputs]
    return TrainingResult(figures, keeper.result(model), about)


def _model(plan: TrainingPlan, payload: dict[str, Any], hvd: Any) -> Any:
    packed = payload["model"]
    if plan.checkpoint is not None:
        packed = objects.PackedModel(packed.legacy, packed.backend, packed.floatx, plan.checkpoint)
    custom = payload["custom_objects"]
    own = payload["optimizer"] is None
    model = objects.unpack_model(packed, custom, compiled=own or plan.checkpoint is not None)
    optimizer = getattr(model, "optimizer", None)  # loading a model also restores an optimizer saved with it
    if own and optimizer is None:
        raise ValueError("the model's file does not describe how it was compiled; give optimizer and loss")
    if optimizer is None:
        if plan.checkpoint is not None and hvd.rank() == 0:
            warn_user(
                f"{plan.remote.checkpoint_path} cannot be loaded in compiled form: training continues with its "
                "weights, but without the optimizer's state; add the loss and other custom functions to custom_objects"
            )
        optimizer = objects.unpack(payload["optimizer"], custom)
    if own:
        about = {"loss": model.loss, "metrics": payload["metrics"] or _own_metrics(model)}
    else:
        about = {"loss": payload["loss"], "metrics": objects.unpack(payload["metrics"])}
    if payload["loss_weights"] is not None:
        about["loss_weights"] = payload["loss_weights"]
    distributed = hvd.DistributedOptimizer(
        optimizer,
        compression=payload["gradient_compression"] or hvd.Compression.none,
        backward_passes_per_step=plan.backward_passes_per_step,
    )
    model.compile(optimizer=distributed, **about)
    return model


def _own_metrics(model: Any) -> Any:
    """Return the metrics that the user passed when compiling the model."""
    config = model.get_compile_config() if hasattr(model, "get_compile_config") else None
    return (config or {}).get("metrics")


def _tuples(
    batches: Any, plan: TrainingPlan, shapes: list[Shape] | None, first: list[Any]
) -> Iterator[tuple[Any, ...]]:
    """Yield batches in the form that Keras' ``fit`` expects. Append the inputs of the first batch to `first`."""
    for batch in batches:
        made = for_fit(batch, plan, shapes)
        if not first:
            first.append(made[0])
        yield made


def _repeated(keras: Any, batches: Iterator[Any], steps: int) -> Any:
    """Return the batches as a Keras dataset. Each pass over the dataset consumes exactly `steps` batches.

    With a generator, Keras would read more batches than validation needs, and discard the rest.
    """
    base = getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence

    class Repeated(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self._place = 0

        def __len__(self) -> int:
            return steps

        def __getitem__(self, index: int) -> Any:
            while self._place != index:
                self._take()
            return self._take()

        def _take(self) -> Any:
            batch = next(batches)
            self._place = (self._place + 1) % steps
            return batch

    return Repeated()


def _take_gpu(backend: str, local_rank: int) -> None:
    """Select the rank's GPU in TensorFlow or PyTorch. Other backends use the GPUs that the launcher makes visible."""
    if backend == "tensorflow":
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")
        if found:
            mine = found[own_gpu(len(found), local_rank)]
            tf.config.set_visible_devices(mine, "GPU")
            tf.config.experimental.set_memory_growth(mine, True)
    elif backend == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(own_gpu(torch.cuda.device_count(), local_rank))


def _keeper(plan: TrainingPlan, payload: dict[str, Any], keras: Any) -> Any:
    """Return an object that saves the model to the store after each epoch.

    If the user has passed a checkpoint_callback, the store gets the model that the callback has saved, such as the best
    one.
    """
    users = payload["checkpoint_callback"]
    folder = plan.remote.get_local_output_dir()
    path = os.path.join(folder.__enter__(), "checkpoint.keras")

    class Keep(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not plan.remote.saving_runs:
                return
            if users is None:
                data = objects.pack_model(self.model).file
            elif os.path.exists(path):
                with open(path, "rb") as file:
                    data = file.read()
            else:
                return
            plan.remote.store.write(plan.remote.checkpoint_path, data)

    class Keeper:
        callbacks = (*((users,) if users is not None else ()), Keep())

        @staticmethod
        def result(model: Any) -> bytes:
            try:
                if users is not None and os.path.exists(path):
                    with open(path, "rb") as file:
                        return file.read()
                return objects.pack_model(model).file
            finally:
                folder.__exit__(None, None, None)

    if users is not None:
        users.filepath = path
    return Keeper
