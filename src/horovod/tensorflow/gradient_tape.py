"""Gradient tape that computes gradients and reduces them over the ranks."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.ops import Average
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.gradients import groups_of
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.reduction import LocalVariables, Reduce, make_allreduce_grads

_NONE = tf.UnconnectedGradients.NONE


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    weight: Any = None,
) -> Any:
    """Return a view of a gradient tape whose ``gradient`` method reduces over the ranks.

    The view's class is a subclass of the tape's class, and the view shares the tape's state. ``gradtape`` may therefore
    already be recording or have finished recording. ``gradtape`` itself is not changed. If ``gradtape`` is already
    distributed, the new view uses only the new arguments.

    All ranks must compute gradients of the same sources in the same order. Gradients that are None stay None. Jacobians
    are not reduced. On a rank that is not in ``process_set``, gradients are not reduced.

    Args:
        gradtape (tf.GradientTape): Tape.
        device_dense (str): TensorFlow device for dense gradients. Default: TensorFlow's choice.
        device_sparse (str): TensorFlow device for IndexedSlices. Default: TensorFlow's choice.
        compression (Compressor): See ``Compression``. Default: none.
        sparse_as_dense (bool): Convert IndexedSlices to dense tensors instead of gathering them. Default: False.
        op (int): Reduction, as in ``allreduce``. Default: ``Average``.
        gradient_predivide_factor (float): With ``Average`` over n ranks and a factor f, gradients are divided by f
            before and by n/f after the summation. Default: 1.0.
        num_groups (int): Deprecated; use ``groups``.
        groups (int or Sequence[Sequence], optional): Number of groups, or lists of variables. The gradients of a group
            are reduced together.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        scale_local_gradients (bool): Divide the gradients of variables passed to ``register_local_source`` by the
            number of ranks. Default: True.
        weight (float, tf.Tensor or Callable, optional): Number of samples over which this rank's gradients are the
            mean, or a function that returns it and is called in each reduction. Gradients are then the mean over all
            ranks' samples, and zeros if all ranks have 0. A rank with 0 takes part; its gradients can be NaN. In a
            tf.function, pass a tensor such as ``tf.shape(x)[0]``, because a number is a constant there. All ranks must
            pass it, or none. It requires ``Average``, and has no effect in a job with one rank.

    Returns:
        tf.GradientTape: Distributed tape.

    Raises:
        ValueError: If an argument is invalid. The message names it.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"gradtape must be a tf.GradientTape, got a {type(gradtape).__name__}")
    groups = groups_of(num_groups, groups)
    reduce = make_allreduce_grads(
        "DistributedGradientTape_Allreduce",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups,
        process_set,
        weight,
    )
    plain = gradtape._hvd.plain if isinstance(gradtape, _Distributed) else type(gradtape)
    made = object.__new__(_class_over(plain))
    # Share the original tape's state with the distributed tape, so that the program can record with either.
    made.__dict__ = gradtape.__dict__
    made._hvd = _Control(plain, reduce, LocalVariables(scale_local_gradients, process_set))
    return made


class _Control:
    """State that a distributed gradient tape adds to the original tape."""

    def __init__(self, plain: type, reduce: Reduce, local: LocalVariables) -> None:
        self.plain = plain
        self.reduce = reduce
        self.local = local
        self.layers: list[Any] = []

    def plain_view(self, tape: Any) -> Any:
        """Return a view of the tape whose ``gradient`` method returns unreduced gradients."""
        view = object.__new__(self.plain)
        view.__dict__ = tape.__dict__
        return view

    def all_local(self) -> LocalVariables:
        # Read the layers' weights only now, because a layer has no weights until its first forward pass.
        for layer in self.layers:
            for variable in layer.trainable_weights:
                self.local.add(variable)
        return self.local


class _Distributed:
    """Methods of the original tape that a distributed gradient tape overrides."""

    __slots__ = ()
    _hvd: _Control

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: Any = False,
        unconnected_gradients: Any = _NONE,
    ) -> Any:
        """Compute gradients as tf.GradientTape does, and reduce them over the ranks.

        Args:
            target: Same as in tf.GradientTape.
            sources: Same as in tf.GradientTape.
            output_gradients: Same as in tf.GradientTape.
            use_generic_names (bool): Ignored; accepted for compatibility. tf.GradientTape has ``unconnected_gradients``
                in this position, so a tf.UnconnectedGradients value is accepted too.
            unconnected_gradients: Same as in tf.GradientTape.

        Returns:
            Reduced gradients, in the structure of ``sources``.
        """
        if isinstance(use_generic_names, (str, tf.UnconnectedGradients)):
            unconnected_gradients = use_generic_names
        gradients = self._hvd.plain_view(self).gradient(target, sources, output_gradients, unconnected_gradients)
        reduced = self._hvd.all_local().reduce(self._hvd.reduce, tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a Jacobian as tf.GradientTape does, without reducing it."""
        return self._hvd.plain_view(self).jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Compute batch Jacobians as tf.GradientTape does, without reducing them."""
        return self._hvd.plain_view(self).batch_jacobian(*args, **kwargs)

    def register_local_source(self, source: Any) -> None:
        """Mark a variable as local, so that its gradient is not reduced.

        Args:
            source (tf.Variable): Variable.

        Raises:
            ValueError: If ``source`` is not a variable.
        """
        self._hvd.local.add(source)

    def get_local_and_global_gradients(
        self, gradients: Sequence[Any], sources: Sequence[Any]
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Split gradients into those of local variables and those of all others, without reducing them.

        Args:
            gradients (Sequence): Gradients.
            sources (Sequence): Their variables.

        Returns:
            tuple[list, list]: (local, global), each a list of (variable, gradient) pairs.
        """
        local = self._hvd.all_local()
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True))
        return [pair for pair in pairs if pair[0] in local], [pair for pair in pairs if pair[0] not in local]


@functools.cache  # Cache the class, because eager training loops wrap a tape in every step.
def _class_over(plain: type) -> type:
    members = {"__slots__": ("_hvd",), "__module__": plain.__module__, "__doc__": plain.__doc__}
    return type(plain.__name__, (_Distributed, plain), members)


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a ``DistributedGradientTape`` that leaves the gradients of some layers unreduced.

    Args:
        gradtape (tf.GradientTape): Tape.
        device_dense (str): Same as in ``DistributedGradientTape``.
        device_sparse (str): Same as in ``DistributedGradientTape``.
        compression (Compressor): Same as in ``DistributedGradientTape``. Default: none.
        sparse_as_dense (bool): Same as in ``DistributedGradientTape``. Default: False.
        op (int): Same as in ``DistributedGradientTape``. Default: ``Average``.
        gradient_predivide_factor (float): Same as in ``DistributedGradientTape``. Default: 1.0.
        num_groups (int): Deprecated; use ``groups``.
        groups (int or Sequence[Sequence], optional): Same as in ``DistributedGradientTape``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        local_layers (Layer or list[Layer], optional): Keras layers whose gradients are not reduced. They may be built
            later.
        scale_local_gradients (bool): Divide local gradients by the number of ranks. Default: True.

    Returns:
        tf.GradientTape: Distributed tape.

    Raises:
        ValueError: If an argument is invalid, or an entry of ``local_layers`` is not a layer.
    """
    layers = check_layers(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    tape._hvd.layers += layers
    return tape


def check_layers(local_layers: Any) -> list[Any]:
    """Return the layers as a list.

    Raises:
        ValueError: If an entry is not a layer. The message names its type.
    """
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        # Compare class names, to support all Keras packages without importing any of them.
        if not any(base.__name__ == "Layer" and "keras" in base.__module__ for base in type(layer).__mro__):
            raise ValueError(
                f"local_layers must be None, a Keras layer or a list of layers, got a {type(layer).__name__}"
            )
    return layers
