"""DistributedGradientTape: a tf.GradientTape whose gradients are reduced over the ranks."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.gradients import groups_of
from horovod.common.ops import Average
from horovod.common.process_sets import ProcessSet, global_process_set
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
) -> Any:
    """Another view of ``gradtape``, a tape before, while or after it records: an object of a subclass of its class that
    shares its state, and whose ``gradient`` reduces over the ranks. ``gradtape`` itself stays as it was; if it is
    distributed, the new view reduces in the new way only.

    All ranks take gradients of the same sources in the same order. None passes through. Jacobians are not reduced.
    A process outside of ``process_set`` gets its own gradients.

    ``device_dense``, ``device_sparse``: devices for the operations, '' leaves it to TensorFlow. ``compression``: see
    ``Compression``. ``sparse_as_dense``: IndexedSlices are made dense instead of being gathered.
    ``gradient_predivide_factor`` f, for Average: gradients are divided by f before and by n/f after the sum.
    ``groups``: a number of groups, or lists of variables whose gradients are reduced together. ``num_groups``:
    deprecated. ``scale_local_gradients``: those of ``register_local_source`` are divided by the number of ranks.

    Raises ValueError naming the argument.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"gradtape is a {type(gradtape).__name__}; accepted is a tf.GradientTape")
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
    )
    plain = gradtape._hvd.plain if isinstance(gradtape, _Distributed) else type(gradtape)
    made = object.__new__(_class_over(plain))
    made.__dict__ = gradtape.__dict__  # one state, so that either of the two may record
    made._hvd = _Control(plain, reduce, LocalVariables(scale_local_gradients, process_set))
    return made


class _Control:
    """What a distributed tape has beside the state of the plain one."""

    def __init__(self, plain: type, reduce: Reduce, local: LocalVariables) -> None:
        self.plain = plain
        self.reduce = reduce
        self.local = local
        self.layers: list[Any] = []

    def plain_view(self, tape: Any) -> Any:
        """The tape without distribution."""
        view = object.__new__(self.plain)
        view.__dict__ = tape.__dict__
        return view

    def all_local(self) -> LocalVariables:
        # Only now: a layer has no weights until it is built, in general by the forward pass.
        for layer in self.layers:
            for variable in layer.trainable_weights:
                self.local.add(variable)
        return self.local


class _Distributed:
    """What the class of a distributed tape has before that of the plain one."""

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
        """As of the plain tape, reduced; same structure as ``sources``.

        ``use_generic_names``: accepted for old programs; names on the wire never contain those of variables. A
        tf.UnconnectedGradients is accepted in its place, as the plain tape has it there.
        """
        if isinstance(use_generic_names, (str, tf.UnconnectedGradients)):
            unconnected_gradients = use_generic_names
        gradients = self._hvd.plain_view(self).gradient(target, sources, output_gradients, unconnected_gradients)
        reduced = self._hvd.all_local().reduce(self._hvd.reduce, tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As of the plain tape, not reduced."""
        return self._hvd.plain_view(self).jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As of the plain tape, not reduced."""
        return self._hvd.plain_view(self).batch_jacobian(*args, **kwargs)

    def register_local_source(self, source: Any) -> None:
        """From now on the gradient of this variable is not reduced. ValueError for what is no variable."""
        self._hvd.local.add(source)

    def get_local_and_global_gradients(
        self, gradients: Sequence[Any], sources: Sequence[Any]
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Sorts gradients by whether their variables are local: ``([(variable, gradient)], [(variable, gradient)])``,
        local ones first. Reduces nothing."""
        local = self._hvd.all_local()
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True))
        return [pair for pair in pairs if pair[0] in local], [pair for pair in pairs if pair[0] not in local]


@functools.cache  # eager loops wrap a tape in every step
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
    """``DistributedGradientTape`` that leaves the gradients of some layers to their rank.

    ``local_layers``: a Keras layer or a list of them; they may be built later. All else as there. Raises ValueError
    naming the type of what is no layer.
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
    """The layers as a list. ValueError naming the type of what is none."""
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        # By name, for there are several Keras and none needs to be imported for this.
        if not any(base.__name__ == "Layer" and "keras" in base.__module__ for base in type(layer).__mro__):
            raise ValueError(
                f"local_layers has a {type(layer).__name__}; accepted are None, Keras layers and lists of them"
            )
    return layers
