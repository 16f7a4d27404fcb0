"""What horovod.keras and horovod.tensorflow.keras have in common: ``Face`` knows the Keras in use and its backend's
adapter; ``make_functions`` and ``make_callbacks`` make what they export."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from horovod._keras import backend, callbacks, in_sync, metric_average, saving
from horovod._keras.reduction import GradientReduction
from horovod._keras.versions import (
    backend_of,
    build_optimizer,
    dtype_name,
    import_keras,
    is_legacy,
    keras_of,
    legacy_rates,
)
from horovod.common.compression import check_compression
from horovod.common.exceptions import UnsupportedOpError
from horovod.common.in_sync.variables import optimizer_variables
from horovod.common.ops import Average, op_name, resolve_op
from horovod.common.ops import Sum as SumOp
from horovod.common.own_variables import is_own
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.refusals import said
from horovod.common.state import state


class Face:
    """One of the two Keras modules of this package."""

    def __init__(self, keras: Any, adapter: Any) -> None:
        """``keras``: the module, Keras 3 or Keras 2. ``adapter``: of its backend, see ``backend.Adapter``."""
        self.keras = keras
        self.adapter = adapter

    def distributed(self, optimizer: Any, name: str | None = None, rebuild: bool = True, **options: Any) -> Any:
        """A distributed optimizer like ``optimizer``. ``options``: the fields of GradientReduction."""
        if not hasattr(optimizer, "get_config") or not hasattr(optimizer, "apply_gradients"):
            raise ValueError(f"optimizer is a {type(optimizer).__name__}; accepted are Keras optimizers")
        keras = keras_of(optimizer, self.keras)
        if backend_of(keras) != backend_of(self.keras):
            raise ValueError(
                f"optimizer is a {type(optimizer).__name__} of {keras.__name__} {keras.__version__} on "
                f"{backend_of(keras)}; accepted are optimizers of {self.keras.__name__} {self.keras.__version__} on "
                f"{backend_of(self.keras)}"
            )
        prefix = name or f"Distributed{type(optimizer).__name__}"
        reduction = GradientReduction(adapter=self.adapter, name=prefix, **options)
        if is_legacy(keras):
            from horovod._keras import legacy

            return legacy.distribute(keras, optimizer, reduction, rebuild)
        from horovod._keras import optimizer as modern

        return modern.distribute(keras, optimizer, reduction, rebuild)

    def broadcast_model(self, model: Any, root_rank: int, local_variables: Any = None) -> None:
        """Brings all ranks to the root's weights and optimizer state. ``local_variables``: are left alone, and so are
        gradients that a rank is still summing up."""
        sync = getattr(model, "jax_state_sync", None)
        if sync is not None and self.adapter.__name__.endswith("_jax"):
            sync()  # while fit runs, the values are elsewhere than in the variables
        self.adapter.broadcast_variables(self._shared(model, local_variables), root_rank, global_process_set)

    def shared_shapes(self, model: Any, local_variables: Any = None) -> list[str] | None:
        """Return shape and dtype of each variable that ``broadcast_model`` sends, or None if some do not exist yet.

        The variables of an optimizer that has not taken a step are made now.
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
        """Leaves the gradients of ``layers`` with their rank. ValueError for what is no layer, or not built."""
        layers = [] if layers is None else list(layers) if isinstance(layers, list | tuple) else [layers]
        for layer in layers:
            if not isinstance(layer, self.keras.layers.Layer):
                raise ValueError(f"local_layers contains a {type(layer).__name__}; accepted are layers")
            if not layer.built:
                raise ValueError(f"local_layers: layer {layer.name!r} has no variables yet; build the model first")
            for variable in layer.trainable_weights:
                optimizer.register_local_var(variable)


def open_face(only: str | None = None) -> Face:
    """The Keras of this process and the adapter of its backend. ``only``: the backend that is accepted.

    ImportError, naming what is missing or wrong.
    """
    keras = import_keras()
    name = backend_of(keras)
    if only is not None and name != only:
        raise ImportError(
            f"Keras' backend is {name!r}; accepted here is {only!r} (set KERAS_BACKEND={only}, or use horovod.keras)"
        )
    return Face(keras, backend.load(name))


def make_functions(face: Face) -> SimpleNamespace:
    """The functions that both modules export."""
    adapter, none = face.adapter, face.adapter.Compression.none

    def allreduce(
        value: Any,
        name: str | None = None,
        average: bool | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        op: int | None = None,
        compression: Any = none,
    ) -> Any:
        """The reduction over all ranks of ``value``, a tensor, an array or a number of equal shape and dtype on all
        ranks, as a tensor of the backend.

        ``name``: matches the operation between ranks; unnamed ones are matched by their order. ``op``: Average (the
        default), Sum, Min, Max, Product. ``average``: deprecated. ``compression``: see ``Compression``; wire
        formats take float32 with Average or Sum. Raises what the backend's face does.
        """
        op = resolve_op(op, average, lambda: said(state, "allreduce"))
        check_compression(compression)
        return adapter.allreduce(value, name, op, prescale_factor, postscale_factor, compression)

    def allgather(value: Any, name: str | None = None) -> Any:
        """The values of all ranks joined along dim 0, in which their shapes may differ; not for scalars."""
        return adapter.allgather(value, name)

    def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
        """The value of rank ``root_rank``, as a tensor; equal shapes and dtypes on all ranks."""
        return adapter.broadcast(value, root_rank, name)

    def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
        """This rank's part, cut along dim 0, of the reduction with Average or Sum; not for scalars. ValueError for
        another ``op``."""
        if isinstance(op, bool) or op not in (Average, SumOp):
            raise UnsupportedOpError(
                f"{said(state, 'reducescatter')}: op is {op_name(op)}; accepted are Average and Sum"
            )
        return adapter.reducescatter(value, name, op)

    def check_in_sync(
        *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
    ) -> str:
        """Raises OutOfSyncError, on all ranks, unless all hold the same, bit for bit; all ranks of the set call it.

        ``objects``, ``named``: models, with which goes the optimizer that they are compiled with, layers, optimizers,
        variables, tensors, arrays, numbers, texts, None, and dicts and lists of these. The error names the first
        difference, as in ``model.weights[3]``, the ranks, and small values; keywords give the names there. Moving
        statistics of batch normalisation, which differ between ranks, and a model's local variables are left out.
        ``ignore``: more to leave out, paths or patterns as in ``["model.optimizer.*"]``.

        Returns the SHA-256 of what was compared, in hexadecimal. Raises ValueError naming an argument of which nothing
        could be compared, RuntimeError in a graph of tf.compat.v1, and what the backend's face does when a rank is
        lost.
        """
        return in_sync.check(face, objects, named, process_set, ignore)

    def broadcast_global_variables(root_rank: int) -> Any:
        """In a graph of tf.compat.v1: broadcasts all global variables. RuntimeError everywhere else."""
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
        """The model in a file, compiled with its optimizer made distributed, state included.

        ``custom_optimizers``: optimizer classes of your own that the file may name; ``custom_objects``: as for
        ``keras.models.load_model``. ``compression``: of the optimizer. ``legacy_opts``: the file's optimizers are those
        of ``tf_keras.optimizers.legacy``; ValueError with Keras 3, which has none.
        """

        def wrap(optimizer: Any) -> Any:
            return face.distributed(optimizer, rebuild=False, compression=compression)

        return saving.load_model(face.keras, wrap, filepath, custom_optimizers, custom_objects, legacy_opts)

    return SimpleNamespace(
        **{name: value for name, value in locals().items() if name not in ("face", "adapter", "none")}
    )


def make_callbacks(face: Face) -> SimpleNamespace:
    """The callback classes, on top of those of the Keras in use."""
    keras_callbacks = face.keras.callbacks

    def join(mixin: type, base: type, name: str) -> type:
        namespace = {"__doc__": mixin.__doc__, "_hvd_face": face}
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
