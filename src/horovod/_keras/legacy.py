"""Distributed optimizers for Keras 2: tf_keras, and Keras in TensorFlow up to 2.15.

Keras 2 has a method that can reduce gradients after they are computed and before they are applied:
``aggregate_gradients``, or ``_aggregate_gradients`` in legacy optimizers. ``apply_gradients`` calls it, and so does
loss scaling (mixed_float16) before it checks for infinities. This module overrides the method, so loss scaling sees the
same gradients on all ranks.

Programs may also request gradients with ``compute_gradients`` or ``get_gradients`` and change them before applying
them. These methods return reduced gradients, which are not reduced again when they are applied.
"""

import copy
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from horovod._keras import checks
from horovod._keras.alike import differing
from horovod._keras.reduction import GradientReduction, LocalAggregation

# -- tracking of reduced gradients -----------------------------------------------------------------------------------
#
# Programs can request reduced gradients, for example with ``compute_gradients``. Gradients that are computed from
# reduced ones must not be reduced again when they are applied. All other gradients must be reduced, even if the program
# has requested reduced gradients without applying them.
#
# In a graph, the operations show how a gradient was computed. In eager mode, a gradient tape watches the reduced
# gradients until they are applied, and records what is computed from them. Values that leave TensorFlow (NumPy,
# integers, ``tf.stop_gradient``, variables) and come back count as not reduced.

# Maximum number of open tapes, for programs that request reduced gradients but never apply them. Programs that apply a
# sum of several reduced gradients need the latest tapes.
_MAX_SHOWN = 8


class ReducedMarks:
    """Record of the gradients that have already been reduced."""

    def __init__(self) -> None:
        self._eager: list[_Watched] = []
        self._in_graphs: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

    def add(self, grads: Sequence[Any]) -> None:
        """Record that ``grads`` have been reduced."""
        tensors = [part for grad in grads for part in _parts(grad)]
        eager = [tensor for tensor in tensors if not _is_symbolic(tensor)]
        if eager:
            self._eager.append(_Watched(eager))
            if len(self._eager) > _MAX_SHOWN:
                self._eager.pop(0).end()
        for tensor in tensors:
            if _is_symbolic(tensor):
                self._in_graphs.setdefault(tensor.graph, set()).add(tensor.name)

    def of(self, grads: Sequence[Any]) -> list[bool]:
        """For each gradient, return True if it is None, already reduced, or computed from reduced gradients."""
        return [all(self._is_reduced(part) for part in _parts(grad)[:1]) for grad in grads]

    def applied(self, grads: Sequence[Any]) -> None:
        """Record that ``grads`` have been applied.

        Stop tracking the eager gradients from which they were computed.
        """
        tensors = [part for grad in grads for part in _parts(grad) if not _is_symbolic(part)]
        ids = {id(tensor) for tensor in tensors}
        same = [watched for watched in self._eager if watched.holds(ids)]
        # The watched gradients from which these gradients were computed are unknown. Assume the oldest ones, because
        # programs apply gradients in order.
        made = [] if same or not record.should_record_backprop(tensors) else self._eager[:1]
        for watched in same or made:
            watched.end()
            self._eager.remove(watched)

    def _is_reduced(self, tensor: Any) -> bool:
        if not _is_symbolic(tensor):
            if not self._eager:
                return False
            return any(w.holds({id(tensor)}) for w in self._eager) or bool(record.should_record_backprop([tensor]))
        return self._comes_from_reduced(tensor)

    def _comes_from_reduced(self, tensor: Any) -> bool:
        """Return True if ``tensor`` was computed from a reduced gradient in this or an enclosing tf.function."""
        seen: set[tuple[int, str]] = set()
        ahead = [tensor]
        while ahead:
            tensor = ahead.pop()
            if not _is_symbolic(tensor):
                if self._is_reduced(tensor):
                    return True
                continue
            key = (id(tensor.graph), tensor.name)
            if key in seen:
                continue
            seen.add(key)
            if tensor.name in self._in_graphs.get(tensor.graph, ()):
                return True
            ahead.extend(tensor.op.inputs)
            if tensor.op.type == "Placeholder":
                ahead.extend(_captured(tensor))
        return False


class _Watched:
    """Reduced gradients of eager mode, and the gradient tape that records what the program computes from them."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = [weakref.ref(tensor) for tensor in tensors]
        self._thread = threading.get_ident()
        self._tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
        self._tape.__enter__()
        self._tape.watch([tensor for tensor in tensors if tensor.dtype.is_floating])

    def holds(self, ids: set[int]) -> bool:
        return any(ref() is not None and id(ref()) in ids for ref in self._tensors)

    def end(self) -> None:
        # Only the thread that opened a tape can close it.
        if threading.get_ident() == self._thread:
            self._tape.__exit__(None, None, None)


def _parts(grad: Any) -> list[Any]:
    """Return a list with the tensor that holds the values of ``grad``, or an empty list if ``grad`` is None."""
    if grad is None:
        return []
    return [grad.values if isinstance(grad, tf.IndexedSlices) else grad]


def _is_symbolic(tensor: Any) -> bool:
    return not hasattr(tensor, "numpy")


def _captured(placeholder: Any) -> list[Any]:
    """Return the outer tensor that a placeholder in a tf.function stands for, as a list of one element.

    The list is empty if the tensor is not a placeholder.
    """
    captures = getattr(placeholder.graph, "captures", ())
    return [outer for outer, inner in captures if inner is placeholder]


class Control:
    """State that a distributed optimizer adds to the wrapped optimizer."""

    def __init__(self, reduction: GradientReduction, original: Any) -> None:
        self.reduction = reduction
        self.original = original
        self.aggregation: LocalAggregation | None = None
        if reduction.passes > 1:
            self.aggregation = LocalAggregation(
                _TOOLS, reduction.adapter, reduction.passes, reduction.average_passes, reduction.sparse_as_dense
            )
        self.marks = ReducedMarks()
        # True during an update with gradients that were summed over several passes and then reduced.
        self._updating = False

    def __deepcopy__(self, memo: Any) -> "Control":
        return Control(copy.deepcopy(self.reduction), self.original)

    def aggregate(self, grads_and_vars: Any) -> Any:
        """Reduce the gradients in ``pairs`` that have not been reduced yet.

        If this step needs more backward passes before the reduction, the pairs are returned unchanged.

        Raises:
            ValueError: If gradients are accumulated and loss scaling is used.
        """
        if self._updating:
            return grads_and_vars
        if self.aggregation is not None:
            raise ValueError(
                "backward_passes_per_step must be 1 with loss scaling (mixed_float16) of Keras 2, got "
                f"{self.reduction.passes}"
            )
        pairs = list(grads_and_vars)
        done = self.marks.of([grad for grad, _ in pairs])
        reduced = iter(self.reduce_pairs([pair for pair, is_done in zip(pairs, done, strict=True) if not is_done]))
        return [pair if is_done else next(reduced) for pair, is_done in zip(pairs, done, strict=True)]

    def reduce_pairs(self, grads_and_vars: Any) -> list[Any]:
        pairs = list(grads_and_vars)
        if not pairs:
            return pairs
        self._check()
        variables = [variable for _, variable in pairs]
        return list(zip(self.reduction.reduce([grad for grad, _ in pairs], variables), variables, strict=True))

    def computed(self, grads_and_vars: Any) -> Any:
        """Reduce gradients at the program's request, and record that they are reduced."""
        if self.aggregation is not None:
            return grads_and_vars
        pairs = self.reduce_pairs(grads_and_vars)
        if self.reduction.active():
            self.marks.add([grad for grad, _ in pairs])
        return pairs

    def apply(self, optimizer: Any, plain: Callable[..., Any], grads_and_vars: Any, args: Any, kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if self.aggregation is None:
            try:
                return plain(pairs, *args, **kwargs)
            finally:
                self.marks.applied([grad for grad, _ in pairs])
        self._check()
        variables = [variable for _, variable in pairs]
        # Create the variables here, because TensorFlow does not allow creating them in only one branch of a condition.
        with tf.init_scope():
            if hasattr(optimizer, "_create_all_weights"):
                optimizer._create_all_weights(variables)
            else:
                optimizer.build(variables)

        def update(final: list[Any]) -> None:
            reduced = self.reduction.reduce(final, variables)
            self._updating = True
            try:
                plain(list(zip(reduced, variables, strict=True)), *args, **kwargs)
            finally:
                self._updating = False

        def skip() -> None:
            optimizer.iterations.assign_add(1)

        self.aggregation.step([grad for grad, _ in pairs], variables, update, skip)
        return optimizer.iterations

    def _check(self) -> None:
        if self.reduction.active():
            self.reduction.adapter.check_traceable()


_TOOLS = SimpleNamespace(
    variable=lambda shape, dtype, name: _variable(shape, dtype, name),
    cond=tf.cond,
    tensor=tf.convert_to_tensor,
    zeros_like=tf.zeros_like,
    maximum=tf.maximum,
)


def _variable(shape: Any, dtype: Any, name: str) -> Any:
    with tf.init_scope():
        return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name)


class LegacyMixin:
    """Methods of the wrapped optimizer that a distributed optimizer overrides."""

    _HAS_AGGREGATE_GRAD = True
    # State of the distributed optimizer. It is None if Keras created the object, for example in ``from_config``. The
    # object then does not reduce gradients.
    _hvd: Control | None = None

    @property
    def _agg_helper(self) -> LocalAggregation | None:
        return None if self._hvd is None else self._hvd.aggregation

    @property
    def _optimizer(self) -> Any:
        return self if self._hvd is None else self._hvd.original

    def register_local_var(self, var: Any) -> None:
        """Mark a variable as local, so that its gradient is not reduced.

        The gradient is divided by the number of ranks if ``scale_local_gradients`` is True.

        Args:
            var (Variable): Trainable variable.
        """
        if self._hvd is not None:
            self._hvd.reduction.add_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Compute gradients as the wrapped optimizer does, and reduce them over the ranks."""
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        return pairs if self._hvd is None else self._hvd.computed(pairs)

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        # Current Keras optimizers lack `_compute_gradients`, but old programs call it on them too.
        plain = getattr(super(), "_compute_gradients", _gradients)
        pairs = plain(loss, var_list, grad_loss=grad_loss, tape=tape)
        return pairs if self._hvd is None else self._hvd.computed(pairs)

    def get_gradients(self, loss: Any, params: Any) -> Any:
        """Compute gradients as the wrapped optimizer does, and return them reduced over the ranks."""
        grads = super().get_gradients(loss, params)  # type: ignore[misc]
        if self._hvd is None:
            return grads
        return [grad for grad, _ in self._hvd.computed(zip(grads, tf.nest.flatten(params), strict=True))]

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """Return the (gradient, variable) pairs, with gradients reduced over the ranks."""
        if self._hvd is None:
            return super().aggregate_gradients(grads_and_vars)  # type: ignore[misc]
        return self._hvd.aggregate(grads_and_vars)

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        # Legacy optimizers require this method to return a list of gradients.
        if self._hvd is None:
            return super()._aggregate_gradients(grads_and_vars)  # type: ignore[misc]
        return self._hvd.aggregate(grads_and_vars)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients over the ranks, then apply them as the wrapped optimizer does."""
        plain = super().apply_gradients  # type: ignore[misc]
        if self._hvd is None:
            return plain(grads_and_vars, *args, **kwargs)
        return self._hvd.apply(self, plain, grads_and_vars, args, kwargs)


def is_distributed(optimizer: Any) -> bool:
    """Return True if the optimizer is distributed."""
    return isinstance(optimizer, LegacyMixin) and optimizer._hvd is not None


@functools.cache
def distributed_class(base: type) -> type:
    """Return the distributed subclass of ``base``, registered in Keras under the same name and module."""
    namespace = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    # Hide the methods of LegacyMixin that ``base`` does not define.
    for name in ("compute_gradients", "get_gradients", "aggregate_gradients"):
        if not hasattr(base, name):
            namespace[name] = property(_missing(name))  # type: ignore[assignment]
    for name in ("_keras_api_names", "_keras_api_names_v1"):
        if name in vars(base):
            namespace[name] = vars(base)[name]
    made = type(base.__name__, (LegacyMixin, base), namespace)
    for names in _registries():
        if base in names:
            names[made] = names[base]
    return made


def _gradients(loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> list[tuple[Any, Any]]:
    """Compute (gradient, variable) pairs. ``loss`` is a function or, with ``tape``, a tensor."""
    if tape is None and not callable(loss):
        raise ValueError(f"tape must be a GradientTape if loss is a tensor, got None (loss is a {type(loss).__name__})")
    tape = tf.GradientTape() if tape is None else tape
    if callable(loss):
        with tape:
            loss = loss()
    variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
    return list(zip(tape.gradient(loss, variables, grad_loss), variables, strict=True))


def _missing(name: str) -> Callable[[Any], Any]:
    def get(self: Any) -> Any:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    return get


def _registries() -> list[Any]:
    """Return the dicts in which Keras looks up user-defined classes."""
    found = []
    for path in ("tf_keras.src.saving", "keras.src.saving"):
        try:
            registration = __import__(f"{path}.object_registration", fromlist=["object_registration"])
        except ImportError:
            continue
        names = getattr(registration, "_GLOBAL_CUSTOM_NAMES", None)
        if names is not None:
            found.append(names)
    return found


def distribute(keras: Any, optimizer: Any, reduction: GradientReduction, rebuild: bool = True) -> Any:
    """Return a distributed optimizer equivalent to ``optimizer``; see ``horovod._keras.optimizer.distribute``.

    For a loss scaling optimizer, the inner optimizer becomes distributed, and the result is ``optimizer`` itself.

    Raises:
        ValueError: If the reduction has a weight.
    """
    checks.watch(keras)
    if reduction.weight is not None:
        raise ValueError(f"weight must be None with Keras 2, got {reduction.weight!r}; use a DistributedGradientTape")
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        _finish(inner, inner, reduction)
        return optimizer
    if isinstance(optimizer, LegacyMixin):
        made = optimizer
    else:
        made = (_from_config(keras, optimizer) if rebuild and not _has_state(optimizer) else None) or optimizer
    return _finish(made, optimizer, reduction)


def _finish(wrapped: Any, original: Any, reduction: GradientReduction) -> Any:
    if not isinstance(wrapped, LegacyMixin):
        wrapped.__class__ = distributed_class(type(wrapped))
    # Do not use setattr, because Keras would track this object and save it with the optimizer.
    wrapped.__dict__["_hvd"] = Control(reduction, original)
    return wrapped


def _has_state(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "_built", False) or getattr(optimizer, "_hypers_created", False))


def _from_config(keras: Any, optimizer: Any) -> Any:
    """Rebuild an optimizer from its config. Return None if the config is incomplete."""
    try:
        made = type(optimizer).from_config(optimizer.get_config())
    except Exception:  # Some user-defined optimizers and schedules do not support serialization.
        return None
    return None if differing(keras, optimizer, made) else made
