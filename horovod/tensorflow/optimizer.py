"""DistributedOptimizer for optimizers of tf.compat.v1; those of Keras are handed on to horovod.tensorflow.keras."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.gradients import check_passes, groups_of
from horovod.common.ops import Adasum, Average
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper, in_session
from horovod.tensorflow.reduction import LocalVariables, Reduce, make_allreduce_grads, reduces
from horovod.tensorflow.weight_deltas import WeightDeltas


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that works like ``optimizer`` with gradients reduced over the ranks.

    For a ``tf.compat.v1.train.Optimizer``: an object of a subclass of its class that shares its state. Its
    ``compute_gradients``, and so ``minimize``, gives reduced gradients; ``apply_gradients`` applies what it is given;
    ``register_local_var(variable)`` leaves a variable's gradient on its rank. For a Keras optimizer: what
    ``horovod.tensorflow.keras.DistributedOptimizer`` gives.

    ``name``: of the operations, default ``Distributed<class>``. ``use_locking``: accepted; the optimizer's own counts.
    ``device_dense``, ``device_sparse``: devices for the operations. ``compression``: see ``Compression``.
    ``sparse_as_dense``: IndexedSlices are made dense instead of being gathered. ``backward_passes_per_step``: gradients
    are summed up on each rank over so many passes, and only the last of them changes variables and global_step;
    ``average_aggregated_gradients`` divides the sum by their number. ``gradient_predivide_factor`` f, for Average:
    gradients are divided by f before and by n/f after the sum. ``groups``: a number of groups, or lists of variables
    whose gradients are reduced together; ``num_groups``: deprecated. ``scale_local_gradients``: gradients of local
    variables are divided by the number of ranks. ``op``: with Adasum an optimizer of tf.compat.v1 takes its steps on
    each rank alone, and every ``backward_passes_per_step`` steps the changes of the weights are combined.

    Raises ValueError naming the argument: also for Adasum with ``average_aggregated_gradients``, and for an optimizer
    of tf.compat.v1 in eager mode with ``backward_passes_per_step`` above 1.
    """
    del use_locking
    check_passes(backward_passes_per_step)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("average_aggregated_gradients=True does not go with op=Adasum, which sums nothing up")
    groups = groups_of(num_groups, groups)
    if _is_keras(optimizer):
        from horovod.tensorflow import keras

        return keras.DistributedOptimizer(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise ValueError(
            f"optimizer is a {type(optimizer).__name__}; accepted are a tf.compat.v1.train.Optimizer and a Keras "
            "optimizer"
        )
    if backward_passes_per_step > 1 and tf.executing_eagerly():
        raise ValueError(
            f"backward_passes_per_step={backward_passes_per_step} with {type(optimizer).__name__}, an optimizer of "
            "tf.compat.v1, works in graphs only; in eager mode use a Keras optimizer"
        )
    name = name or f"Distributed{type(optimizer).__name__}"
    reduce = make_allreduce_grads(
        f"{name}_Allreduce",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups,
        process_set,
    )
    control = _Control(reduce, LocalVariables(scale_local_gradients, process_set), process_set)
    if op == Adasum:
        control.deltas = WeightDeltas(backward_passes_per_step, reduce, name)
    elif backward_passes_per_step > 1:
        control.helper = LocalGradientAggregationHelper(
            backward_passes_per_step, control.reduce, sparse_as_dense, average_aggregated_gradients, name=name
        )
    return _wrap(optimizer, control)


def _is_keras(optimizer: Any) -> bool:
    # By name, for there are several Keras and none needs to be imported for this.
    names = {(base.__module__.split(".")[0], base.__name__) for base in type(optimizer).__mro__}
    roots = {root for root, _ in names}
    kinds = {kind for _, kind in names}
    return bool(roots & {"keras", "tf_keras"}) and bool(kinds & {"Optimizer", "OptimizerV2", "BaseOptimizer"})


def _wrap(optimizer: Any, control: "_Control") -> Any:
    plain = optimizer._hvd.plain if isinstance(optimizer, _DistributedOptimizer) else type(optimizer)
    members = {"__slots__": ("_hvd",), "__module__": plain.__module__, "__doc__": plain.__doc__}
    made = object.__new__(type(plain.__name__, (_DistributedOptimizer, plain), members))
    made.__dict__ = optimizer.__dict__  # slots, names and hyperparameters are those of the given optimizer
    control.plain = plain
    control.original = optimizer
    made._hvd = control
    return made


class _Control:
    """What a distributed optimizer has beside the state of the plain one."""

    def __init__(self, reduce: Reduce, local: LocalVariables, process_set: ProcessSet) -> None:
        self.plain: Any = None
        self.original: Any = None
        self.local = local
        self.helper: LocalGradientAggregationHelper | None = None
        self.deltas: WeightDeltas | None = None
        self._reduce = reduce
        self._process_set = process_set

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self.local.reduce(self._reduce, gradients, variables)

    def compute(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        if self.deltas is not None:
            return gradients
        if self.helper is not None:
            return self.helper.compute_gradients(gradients, variables)
        return self.reduce(gradients, variables)

    def apply(self, pairs: list[Any], apply: Callable[[Any], Any]) -> Any:
        if self.deltas is not None and reduces(self._process_set):
            moved = [v for gradient, v in pairs if gradient is not None and v not in self.local]
            return self.deltas.apply(pairs, moved, apply)
        if self.helper is not None:
            return self.helper.apply_gradients(lambda: apply(pairs))
        return apply(pairs)


class _DistributedOptimizer:
    """What the class of a distributed optimizer has before that of the plain one."""

    __slots__ = ()
    _hvd: _Control

    @property
    def _optimizer(self) -> Any:
        """The optimizer that was given; other software reads it."""
        return self._hvd.original

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As of the plain optimizer, with reduced gradients."""
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        variables = [variable for _, variable in pairs]
        return list(zip(self._hvd.compute([gradient for gradient, _ in pairs], variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As of the plain optimizer: applies the gradients as they are. With ``backward_passes_per_step`` above 1 it
        does so, and advances ``global_step``, in the last of so many passes."""
        pairs = list(grads_and_vars)
        plain = super().apply_gradients  # type: ignore[misc]
        with _own_train_op() as own:
            return own(self._hvd.apply(pairs, lambda ready: plain(ready, *args, **kwargs)))

    def register_local_var(self, var: Any) -> None:
        """From now on the gradient of this variable is not reduced. ValueError for what is no variable."""
        self._hvd.local.add(var)


@contextlib.contextmanager
def _own_train_op() -> Iterator[Any]:
    """Plain optimizers put the operation that they return into the graph's collection of train ops. In there, an
    operation under a condition has to make way for the one that contains the condition."""
    if not in_session():
        yield lambda result: result
        return
    collection = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    before = list(collection)

    def own(result: Any) -> Any:
        collection[:] = before if result in before else [*before, result]
        return result

    yield own
