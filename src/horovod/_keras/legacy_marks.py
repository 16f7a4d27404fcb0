"""Tracking of reduced gradients in Keras 2.

``compute_gradients`` and similar methods return reduced gradients, from which the program may compute others. These
must not be reduced again when they are applied. Gradients of other origin must be, even if the program has requested
reduced gradients without applying them.

In a graph, the origin of a gradient follows from its operations. Eager tensors do not record their origin, but gradient
tapes follow them: a tape that watches the returned gradients knows what was computed from them until they are applied.
Values that leave TensorFlow (NumPy, integers, ``tf.stop_gradient``, variables) and come back count as gradients of
other origin.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record  # no public API to query tapes

# Limits the number of tapes for programs that only look at gradients. Programs that sum several reduced gradients
# before they apply the sum need the tapes of the last few.
_MOST = 8


class ReducedMarks:
    """The reduced gradients that were returned to the program."""

    def __init__(self) -> None:
        self._eager: list[_Watched] = []
        self._in_graphs: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

    def add(self, grads: Sequence[Any]) -> None:
        """Record that these gradients are reduced."""
        tensors = [part for grad in grads for part in _parts(grad)]
        eager = [tensor for tensor in tensors if not _is_symbolic(tensor)]
        if eager:
            self._eager.append(_Watched(eager))
            if len(self._eager) > _MOST:
                self._eager.pop(0).end()
        for tensor in tensors:
            if _is_symbolic(tensor):
                self._in_graphs.setdefault(tensor.graph, set()).add(tensor.name)

    def of(self, grads: Sequence[Any]) -> list[bool]:
        """Return for each gradient whether it is reduced or computed from reduced ones. This holds for None."""
        return [all(self._is_reduced(part) for part in _parts(grad)[:1]) for grad in grads]

    def applied(self, grads: Sequence[Any]) -> None:
        """Record that these gradients were applied: eagerly, earlier ones need not be tracked any longer."""
        tensors = [part for grad in grads for part in _parts(grad) if not _is_symbolic(part)]
        ids = {id(tensor) for tensor in tensors}
        same = [watched for watched in self._eager if watched.holds(ids)]
        # Other tensors may be computed from any returned gradients; assume the oldest, because they are applied in
        # order.
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
        """Search the operations that led to ``tensor``, also outside of nested functions."""
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
    """Eager gradients that were returned to the program, and the tape that follows them."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = [weakref.ref(tensor) for tensor in tensors]
        self._thread = threading.get_ident()
        self._tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
        self._tape.__enter__()
        self._tape.watch([tensor for tensor in tensors if tensor.dtype.is_floating])

    def holds(self, ids: set[int]) -> bool:
        return any(ref() is not None and id(ref()) in ids for ref in self._tensors)

    def end(self) -> None:
        if threading.get_ident() == self._thread:  # each thread has its own tapes
            self._tape.__exit__(None, None, None)


def _parts(grad: Any) -> list[Any]:
    """Return the tensors whose origin determines that of ``grad``."""
    if grad is None:
        return []
    return [grad.values if isinstance(grad, tf.IndexedSlices) else grad]


def _is_symbolic(tensor: Any) -> bool:
    return not hasattr(tensor, "numpy")


def _captured(placeholder: Any) -> list[Any]:
    """Return the outer tensor that a function captured by this placeholder."""
    captures = getattr(placeholder.graph, "captures", ())
    return [outer for outer, inner in captures if inner is placeholder]
