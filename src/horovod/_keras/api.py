"""Shared implementation of horovod.keras and horovod.tensorflow.keras.

``Frontend`` holds the Keras module and its backend's adapter, and creates the exported functions and callbacks.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from horovod._keras import backend, callbacks, checks, metric_average
from horovod._keras.backend import (
    backend_of,
    build_optimizer,
    dtype_name,
    import_keras,
    is_legacy,
    keras_of,
    legacy_rates,
)
from horovod._keras.reduction import GradientReduction
from horovod.common.compression import check_compression
from horovod.common.exceptions import UnsupportedOpError
from horovod.common.frontends import operation_on_rank, state
from horovod.common.in_sync import is_own, optimizer_variables
from horovod.common.ops import Average, op_name, resolve_op
from horovod.common.ops import Sum as SumOp
from horovod.common.process_sets import ProcessSet, global_process_set


def load_distributed(
    keras: Any,
    wrap: Callable[[Any], Any],
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: Mapping[str, Any] | None,
    legacy_opts: bool,
) -> Any:
    """Load a model from a file and make its optimizer distributed, keeping the optimizer's state.

    Args:
        keras: The Keras module.
        wrap: Function that makes an optimizer distributed.
        filepath: Path of the file.
        custom_optimizers: Optimizer classes that the file may refer to by name.
        custom_objects: Same as in Keras.
        legacy_opts: True if names of optimizers refer to ``keras.optimizers.legacy``.

    Returns:
        The model.

    Raises:
        ValueError: If ``legacy_opts`` is True with Keras 3, which has no legacy optimizers.
    """
    objects: dict[str, Any] = {}
    if legacy_opts:
        if not is_legacy(keras):
            raise ValueError(f"legacy_opts must be False with Keras {keras.__version__}, got True")
        objects.update(_by_name(_classes(keras.optimizers.legacy)))
    objects.update(_by_name(custom_optimizers or ()))
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        model.optimizer = wrap(optimizer)
        if not is_legacy(keras) and keras.config.backend() == "tensorflow" and getattr(model, "jit_compile", False):
            # Compile the model again: Keras has compiled it for the original optimizer and might have enabled XLA.
            model.jit_compile = False
    return model


def _classes(module: Any) -> list[type]:
    return [value for value in vars(module).values() if isinstance(value, type)]


def _by_name(classes: Iterable[type]) -> dict[str, Any]:
    """Return a dict of classes keyed by name and by lower-case name, because saved files use both."""
    names: dict[str, Any] = {}
    for kind in classes:
        if not isinstance(kind, type):
            raise ValueError(f"custom_optimizers must contain classes, got {kind!r}")
        names[kind.__name__] = names[kind.__name__.lower()] = kind
    return names


class Frontend:
    """Horovod's API for one Keras module and its backend."""

    def __init__(self, keras: Any, adapter: Any) -> None:
        """Create a frontend.

        Args:
            keras: The Keras module, version 3 or 2.
            adapter: Adapter of its backend; see ``backend.Adapter``.
        """
        self.keras = keras
        self.adapter = adapter

    @functools.cached_property
    def functions(self) -> SimpleNamespace:
        """Functions that both Keras frontends export, keyed by name."""
        return make_functions(self)

    @functools.cached_property
    def callbacks(self) -> SimpleNamespace:
        """Callback classes, created as subclasses of this Keras module's callbacks."""
        return make_callbacks(self)

    def distributed(self, optimizer: Any, name: str | None = None, rebuild: bool = True, **options: Any) -> Any:
        """Return a distributed optimizer equivalent to ``optimizer``.

        ``options`` are fields of GradientReduction. With ``rebuild``, the result can be a new object instead of
        ``optimizer``.

        Raises:
            ValueError: If ``optimizer`` is not an optimizer of this Keras and backend, or an option is invalid.
        """
        if not hasattr(optimizer, "get_config") or not hasattr(optimizer, "apply_gradients"):
            raise ValueError(f"optimizer must be a Keras optimizer, got a {type(optimizer).__name__}")
        keras = keras_of(optimizer, self.keras)
        if backend_of(keras) != backend_of(self.keras):
            raise ValueError(
                f"optimizer must be an optimizer of {self.keras.__name__} {self.keras.__version__} on "
                f"{backend_of(self.keras)}, got a {type(optimizer).__name__} of {keras.__name__} {keras.__version__} "
                f"on {backend_of(keras)}"
            )
        prefix = name or f"Distributed{type(optimizer).__name__}"
        reduction = GradientReduction(adapter=self.adapter, name=prefix, **options)
        if is_legacy(keras):
            from horovod._keras import legacy

            return legacy.distribute(keras, optimizer, reduction, rebuild)
        from horovod._keras import optimizer as modern

        return modern.distribute(keras, optimizer, reduction, rebuild)

    def broadcast_model(self, model: Any, root_rank: int, local_variables: Any = None) -> None:
        """Broadcast the root's weights and optimizer state to all ranks.

        The broadcast skips ``local_variables``, and gradients that a rank is still accumulating.
        """
        sync = getattr(model, "jax_state_sync", None)
        if sync is not None and self.adapter.__name__.endswith("_jax"):
            sync()  # Update the model's variables first, because on JAX they are out of date while fit runs.
        self.adapter.broadcast_variables(self._shared(model, local_variables), root_rank, global_process_set)

    def shared_shapes(self, model: Any, local_variables: Any = None) -> list[str] | None:
        """Return the shape and dtype of each variable that ``broadcast_model`` sends.

        Return None if some variables do not exist yet. If the optimizer has not taken a step, its variables are created
        first.
        """
        deferred = getattr(self.adapter, "builds_later", lambda: False)
        if not getattr(model, "built", False) or not model.weights or deferred():
            return None
        build_optimizer(getattr(model, "optimizer", None), model)
        return [f"{tuple(one.shape)} {dtype_name(one)}" for one in self._shared(model, local_variables)]

    def _shared(self, model: Any, local_variables: Any) -> list[Any]:
        optimizer = getattr(model, "optimizer", None)
        variables = [*model.weights, *optimizer_variables(optimizer), *legacy_rates(optimizer)]
        seen: set[Any] = {self.adapter.key(variable) for variable in local_variables or ()}
        chosen = []
        for variable in variables:
            key = self.adapter.key(variable)
            if key not in seen and not is_own(variable):
                seen.add(key)
                chosen.append(variable)
        return chosen

    def register_local_layers(self, optimizer: Any, layers: Any) -> None:
        """Exclude the gradients of ``layers`` from reduction.

        Raises:
            ValueError: If an entry is not a layer, or is not built.
        """
        layers = [] if layers is None else list(layers) if isinstance(layers, list | tuple) else [layers]
        for layer in layers:
            if not isinstance(layer, self.keras.layers.Layer):
                raise ValueError(f"local_layers must contain Keras layers, got a {type(layer).__name__}")
            if not layer.built:
                raise ValueError(f"local_layers: layer {layer.name!r} has no variables yet; build the model first")
            for variable in layer.trainable_weights:
                optimizer.register_local_var(variable)


@functools.cache
def open_frontend(only: str | None = None) -> Frontend:
    """Return the frontend for the Keras module used by this process.

    If ``only`` is given, it is the only accepted backend.

    Raises:
        ImportError: If Keras is missing or its backend is not accepted.
    """
    keras = import_keras()
    name = backend_of(keras)
    if only is not None and name != only:
        raise ImportError(
            f"the Keras backend must be {only!r} here, got {name!r}; set KERAS_BACKEND={only}, or use horovod.keras"
        )
    checks.watch(keras)
    return Frontend(keras, backend.load(name))


def make_functions(frontend: Frontend) -> SimpleNamespace:
    """Return the functions that both Keras frontends export."""
    adapter, none = frontend.adapter, frontend.adapter.Compression.none

    def allreduce(
        value: Any,
        name: str | None = None,
        average: bool | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        op: int | None = None,
        compression: Any = none,
        weight: Any = None,
    ) -> Any:
        """Reduce a value over all ranks.

        Args:
            value (Tensor, array or number): Value to reduce. Shape and dtype must be the same on all ranks.
            name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by
                call order.
            average (bool, optional): Deprecated; use ``op``.
            prescale_factor (float): Factor applied to ``value`` before the reduction. Default: 1.0.
            postscale_factor (float): Factor applied to the result. Default: 1.0.
            op (int, optional): ``Average`` (default), ``Sum``, ``Min``, ``Max`` or ``Product``.
            compression (Compressor): See ``Compression``. The ``wire_*`` compressors require float32 and ``Average`` or
                ``Sum``. Default: none.
            weight (float, optional): This rank's weight, such as a number of samples, 0 or more. The result is then
                ``sum(weight * value) / sum(weight)`` over the ranks, and zeros if all weights are 0. All ranks must
                pass it, or none. It requires a floating-point value, ``Average``, and no scale factors. Default: all
                ranks count alike.

        Returns:
            Tensor: Reduced value, a tensor of the backend.

        Raises:
            ValueError: If an argument is invalid, or Horovod is not initialized.
            HorovodInternalError: If the ranks' calls do not match, or a rank was lost. On TensorFlow this may be a
                TensorFlow error instead.
        """
        op = resolve_op(op, average, lambda: operation_on_rank(state, "allreduce"))
        check_compression(compression)
        return adapter.allreduce(value, name, op, prescale_factor, postscale_factor, compression, weight)

    def allgather(value: Any, name: str | None = None) -> Any:
        """Concatenate the values of all ranks along dimension 0, in rank order.

        Args:
            value (Tensor or array): Value with at least one dimension. All dimensions except the first must be the same
                on all ranks.
            name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by
                call order.

        Returns:
            Tensor: Concatenated values, a tensor of the backend.
        """
        return adapter.allgather(value, name)

    def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
        """Broadcast the value of one rank to all ranks, and return it.

        Args:
            value (Tensor, array or number): Value to send. Shape and dtype must be the same on all ranks.
            root_rank (int): Rank whose value is sent.
            name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by
                call order.

        Returns:
            Tensor: The root's value, a tensor of the backend.
        """
        return adapter.broadcast(value, root_rank, name)

    def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
        """Reduce a value over all ranks and return this rank's rows of the result.

        Args:
            value (Tensor or array): Value with at least one dimension. Shape and dtype must be the same on all ranks.
            name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by
                call order.
            op (int): ``Average`` (default) or ``Sum``.

        Returns:
            Tensor: This rank's rows of the reduction, a tensor of the backend.

        Raises:
            UnsupportedOpError: If ``op`` is not supported. It is a ValueError.
        """
        if isinstance(op, bool) or op not in (Average, SumOp):
            raise UnsupportedOpError(
                f"{operation_on_rank(state, 'reducescatter')}: op must be Average or Sum, got {op_name(op)}"
            )
        return adapter.reducescatter(value, name, op)

    def check_in_sync(
        *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
    ) -> str:
        """Check that all ranks hold the same values, bit for bit.

        All ranks of the process set must call this. Running statistics of batch normalization, which differ between
        ranks, and a model's local variables are skipped.

        Args:
            *objects: Models (which include the optimizer that they are compiled with), layers, optimizers, variables,
                tensors, arrays, numbers, strings, None, and dicts and lists of these.
            process_set (ProcessSet): Ranks to compare. Default: all ranks.
            ignore (Collection[str]): Further entries to skip, as paths or patterns such as ``["model.optimizer.*"]``.
            **named: More objects, whose keywords become their names in the error message.

        Returns:
            str: SHA-256 of the compared values, in hexadecimal.

        Raises:
            OutOfSyncError: If values differ. Raised on all ranks. The message names the first difference, as in
                ``model.weights[3]``, the ranks, and small values.
            ValueError: If an argument contains nothing that can be compared.
            RuntimeError: If called in a graph of tf.compat.v1.
        """
        return checks.check(frontend, objects, named, process_set, ignore)

    def broadcast_global_variables(root_rank: int) -> Any:
        """Broadcast all global variables of a tf.compat.v1 graph from one rank to all ranks.

        Args:
            root_rank (int): Rank whose values are sent.

        Returns:
            Operation: The operation to run in a session.

        Raises:
            RuntimeError: If called outside a tf.compat.v1 graph.
        """
        implementation = getattr(adapter, "broadcast_global_variables", None)
        if implementation is None:
            raise RuntimeError(
                "broadcast_global_variables works in graphs of tf.compat.v1 only; use "
                "callbacks.BroadcastGlobalVariablesCallback"
            )
        return implementation(root_rank)

    def load_model(
        filepath: Any,
        custom_optimizers: Any = None,
        custom_objects: Any = None,
        compression: Any = none,
        legacy_opts: bool = False,
    ) -> Any:
        """Load a compiled model from a file and make its optimizer distributed, including its state.

        Args:
            filepath (str): Path of the file.
            custom_optimizers (Iterable[type], optional): Optimizer classes that the file may refer to.
            custom_objects (Mapping, optional): Same as in ``keras.models.load_model``.
            compression (Compressor): Compression for the optimizer. Default: none.
            legacy_opts (bool): True if the file's optimizers are from ``tf_keras.optimizers.legacy``. Default:
                False.

        Returns:
            Model: The model, compiled with a distributed optimizer.

        Raises:
            ValueError: If ``legacy_opts`` is True with Keras 3, which has no legacy optimizers.
        """

        def wrap(optimizer: Any) -> Any:
            return frontend.distributed(optimizer, rebuild=False, compression=compression)

        return load_distributed(frontend.keras, wrap, filepath, custom_optimizers, custom_objects, legacy_opts)

    def compute_metric(metric: Any) -> Any:
        """Return the result of a Keras metric over the samples of all ranks.

        All ranks must call this. The function sums the metric's variables over the ranks, which is exact for Keras'
        metrics and for subclasses of its ``Mean`` and ``Sum``. The metric itself is not changed.

        Args:
            metric (keras.metrics.Metric): Metric that each rank has updated with its own samples.

        Returns:
            NumPy scalar, array, or a dict of these for a metric with several results.

        Raises:
            ValueError: If ``metric`` is not such a metric, or has no variables yet. Raised on all ranks.
            HorovodInternalError: If a rank was lost.
        """
        return metric_average.compute(frontend, metric)

    def sync(data: Any, policy: str = "pad", batch_size: int = 32, shuffle: bool = True) -> Any:
        """Return data for ``fit`` with the same number of batches on all ranks. All ranks must call this.

        With a ``DistributedOptimizer``, ``fit`` then averages gradients as with ``weight="batch"``, over the samples of
        all ranks. Each step equals a step of one process on the samples of all ranks that still have a batch. The
        copies of ``"pad"`` count neither in the gradients nor in ``loss`` and ``weighted_metrics``. They do count in
        ``metrics`` and in the statistics of ``BatchNormalization``. It requires Keras 3.

        Args:
            data (PyDataset, tf.data.Dataset, or tuple of arrays): This rank's data. The number of batches must be
                known. Arrays are (x, y) or (x, y, sample_weight).
            policy (str): ``"pad"`` (default) gives a rank with fewer batches copies of one of its batches, with sample
                weights of 0. ``"stop"`` leaves out the batches that other ranks do not have, and warns how many.
            batch_size (int): Number of samples in a batch of arrays. Default: 32.
            shuffle (bool): Shuffle arrays in each epoch. Default: True.

        Returns:
            PyDataset or tf.data.Dataset: Data for ``fit``. Its attribute ``remaining`` is the number of batches of this
                rank that ``"stop"`` leaves out of each epoch.

        Raises:
            ValueError: If an argument of a rank is invalid, a number of batches is unknown, or there are no batches.
                Raised on all ranks.

        Example::

            model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss="mse")
            model.fit(hvd.sync((x, y), batch_size=64), epochs=3)
        """
        if is_legacy(frontend.keras):
            raise ValueError(f"hvd.sync requires Keras 3, got Keras {frontend.keras.__version__}")
        from horovod._keras.uneven import synchronized

        return synchronized(adapter.frontend, data, policy, batch_size, shuffle)

    return SimpleNamespace(
        **{name: value for name, value in locals().items() if name not in ("frontend", "adapter", "none")}
    )


def make_callbacks(frontend: Frontend) -> SimpleNamespace:
    """Create the callback classes, as subclasses of this Keras module's callbacks."""
    keras_callbacks = frontend.keras.callbacks

    def join(mixin: type, base: type, name: str) -> type:
        namespace = {"__doc__": mixin.__doc__, "_hvd_frontend": frontend}
        return type(name, (mixin, base), namespace)

    plain = keras_callbacks.Callback
    return SimpleNamespace(
        BroadcastGlobalVariablesCallback=join(
            callbacks.BroadcastGlobalVariables, plain, "BroadcastGlobalVariablesCallback"
        ),
        MetricAverageCallback=join(metric_average.MetricAverage, plain, "MetricAverageCallback"),
        LearningRateScheduleCallback=join(callbacks.LearningRateSchedule, plain, "LearningRateScheduleCallback"),
        LearningRateWarmupCallback=join(callbacks.LearningRateWarmup, plain, "LearningRateWarmupCallback"),
        BestModel=join(callbacks.BestModel, keras_callbacks.ModelCheckpoint, "BestModel"),
    )
