"""Distributed optimizers for tf.compat.v1. For Keras optimizers, use horovod.tensorflow.keras."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.ops import Adasum, Average
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.gradients import check_passes, groups_of
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper, WeightDeltas, in_session, only_if
from horovod.tensorflow.reduction import LocalVariables, Reduce, make_allreduce_grads, reduces


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
    weight: Any = None,
) -> Any:
    """Return an optimizer equivalent to ``optimizer`` that reduces gradients over the ranks.

    For a ``tf.compat.v1.train.Optimizer``, the result is an instance of a subclass of its class and shares its state.
    Its ``compute_gradients``, and therefore ``minimize``, returns reduced gradients; ``apply_gradients`` applies its
    argument unchanged; ``register_local_var(variable)`` excludes a variable's gradient from reduction. For a Keras
    optimizer, this calls ``horovod.tensorflow.keras.DistributedOptimizer``.

    Args:
        optimizer (Optimizer): Optimizer of tf.compat.v1 or Keras.
        name (str, optional): Name prefix of the operations. Default: ``Distributed`` and the class name.
        use_locking (bool): Ignored; accepted for compatibility. The optimizer's own setting applies.
        device_dense (str): TensorFlow device for dense gradients. Default: TensorFlow's choice.
        device_sparse (str): TensorFlow device for IndexedSlices. Default: TensorFlow's choice.
        compression (Compressor): See ``Compression``. Default: none.
        sparse_as_dense (bool): Convert IndexedSlices to dense tensors instead of gathering them. Default: False.
        backward_passes_per_step (int): Number of passes over which gradients are summed locally. Only the last one
            changes variables and ``global_step``. Default: 1.
        op (int): Reduction. Default: ``Average``. With ``Adasum``, a tf.compat.v1 optimizer steps on each rank
            independently, and every ``backward_passes_per_step`` steps the changes of the weights are combined.
        gradient_predivide_factor (float): With ``Average`` over n ranks and a factor f, gradients are divided by f
            before and by n/f after the summation. Default: 1.0.
        average_aggregated_gradients (bool): Divide the local sums by ``backward_passes_per_step``. Default: False.
        num_groups (int): Deprecated; use ``groups``.
        groups (int or Sequence[Sequence], optional): Number of groups, or lists of variables. The gradients of a group
            are reduced together.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        scale_local_gradients (bool): Divide gradients of local variables by the number of ranks. Default: True.
        weight (float, tf.Tensor or Callable, optional): Number of samples over which this rank's gradients are the
            mean, or a function that returns it and is called in each reduction. Gradients are then the mean over all
            ranks' samples. A rank with 0 takes part; its gradients can be NaN. If all ranks have 0, ``apply_gradients``
            changes nothing; with accumulation, the gradients are zeros. In a tf.function, pass a tensor such as
            ``tf.shape(x)[0]``, because a number is a constant there. With accumulation, it is the number of samples of
            all passes. All ranks must pass it, or none. It requires ``Average``, and has no effect in a job with one
            rank. Keras optimizers also accept "batch".

    Returns:
        Optimizer: Distributed optimizer.

    Raises:
        ValueError: If an argument is invalid. The message names it. This includes ``Adasum`` with
            ``average_aggregated_gradients``, and a tf.compat.v1 optimizer with ``backward_passes_per_step`` above 1 in
            eager mode.
    """
    del use_locking
    check_passes(backward_passes_per_step)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("average_aggregated_gradients must be False with op=Adasum, got True")
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
            weight=weight,
        )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise ValueError(
            f"optimizer must be a tf.compat.v1.train.Optimizer or a Keras optimizer, got a {type(optimizer).__name__}"
        )
    if backward_passes_per_step > 1 and tf.executing_eagerly():
        raise ValueError(
            f"backward_passes_per_step={backward_passes_per_step} with {type(optimizer).__name__}, an optimizer of "
            "tf.compat.v1, works in graphs only; in eager mode use a Keras optimizer"
        )
    name = name or f"Distributed{type(optimizer).__name__}"
    control = _Control(LocalVariables(scale_local_gradients, process_set), process_set)
    reduce = control.reduce_all = make_allreduce_grads(
        f"{name}_Allreduce",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups,
        process_set,
        weight,
        control.on_total,
    )
    if op == Adasum:
        control.deltas = WeightDeltas(backward_passes_per_step, reduce, name)
    elif backward_passes_per_step > 1:
        control.helper = LocalGradientAggregationHelper(
            backward_passes_per_step, control.reduce, sparse_as_dense, average_aggregated_gradients, name=name
        )
    return _wrap(optimizer, control)


def _is_keras(optimizer: Any) -> bool:
    # Compare class names, to support all Keras packages without importing any of them.
    names = {(base.__module__.split(".")[0], base.__name__) for base in type(optimizer).__mro__}
    roots = {root for root, _ in names}
    kinds = {kind for _, kind in names}
    return bool(roots & {"keras", "tf_keras"}) and bool(kinds & {"Optimizer", "OptimizerV2", "BaseOptimizer"})


def _wrap(optimizer: Any, control: "_Control") -> Any:
    plain = optimizer._hvd.plain if isinstance(optimizer, _DistributedOptimizer) else type(optimizer)
    members = {"__slots__": ("_hvd",), "__module__": plain.__module__, "__doc__": plain.__doc__}
    made = object.__new__(type(plain.__name__, (_DistributedOptimizer, plain), members))
    # Share the attributes, such as slots, name and hyperparameters, with the wrapped optimizer.
    made.__dict__ = optimizer.__dict__
    control.plain = plain
    control.original = optimizer
    made._hvd = control
    return made


class _Control:
    """State that a distributed optimizer adds to the plain one."""

    reduce_all: Reduce

    def __init__(self, local: LocalVariables, process_set: ProcessSet) -> None:
        self.plain: Any = None
        self.original: Any = None
        self.local = local
        self.helper: LocalGradientAggregationHelper | None = None
        self.deltas: WeightDeltas | None = None
        # Total weight of the last reduction, kept until the reduced gradients are applied.
        self._total: Any = None
        self._process_set = process_set

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self.local.reduce(self.reduce_all, gradients, variables)

    def on_total(self, total: Any) -> None:
        """Store the total weight of a reduction. A step whose total weight is 0 changes nothing."""
        self._total = total if self.helper is None else None

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
        total, self._total = self._total, None
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        here = total is not None and getattr(total, "graph", None) is graph
        return only_if(total > 0, lambda: apply(pairs)) if here else apply(pairs)


class _DistributedOptimizer:
    """Methods of the wrapped optimizer that a distributed optimizer overrides."""

    __slots__ = ()
    _hvd: _Control

    @property
    def _optimizer(self) -> Any:
        """The original optimizer passed by the caller. Third-party code reads this property."""
        return self._hvd.original

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Compute gradients as the wrapped optimizer does, and reduce them over the ranks."""
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        variables = [variable for _, variable in pairs]
        return list(zip(self._hvd.compute([gradient for gradient, _ in pairs], variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply gradients as the wrapped optimizer does, without reducing them.

        With ``backward_passes_per_step`` above 1, only the last pass applies them and advances ``global_step``.

        Returns:
            The result of the wrapped optimizer.
        """
        pairs = list(grads_and_vars)
        plain = super().apply_gradients  # type: ignore[misc]
        with _own_train_op() as own:
            return own(self._hvd.apply(pairs, lambda ready: plain(ready, *args, **kwargs)))

    def register_local_var(self, var: Any) -> None:
        """Mark a variable as local, so that its gradient is not reduced.

        Args:
            var (tf.Variable): Variable.

        Raises:
            ValueError: If ``var`` is not a variable.
        """
        self._hvd.local.add(var)


@contextlib.contextmanager
def _own_train_op() -> Iterator[Any]:
    """Yield a function that replaces the wrapped optimizer's train op in the graph's TRAIN_OP collection.

    Optimizers add their train op to the TRAIN_OP collection. If the op is in a branch of tf.cond, the collection must
    contain the tf.cond operation instead.
    """
    if not in_session():
        yield lambda result: result
        return
    collection = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    before = list(collection)

    def own(result: Any) -> Any:
        collection[:] = before if result in before else [*before, result]
        return result

    yield own
