"""Which gradients of Keras 2 have been reduced: those that a program was given by ``compute_gradients`` and the like,
and whatever TensorFlow's operations have made of them since.

Such gradients must not be reduced once more when they are applied, and gradients from elsewhere must be, also when some
of the first kind were only looked at and never applied. In a graph it is enough to look where a gradient comes from.
Eagerly nothing tells where a tensor comes from, but gradient tapes follow tensors: one that watches the gradients that
were handed out knows what was made of them, until they are applied. What a program takes out of TensorFlow (NumPy,
integers, ``tf.stop_gradient``, variables) and back in counts as its own.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record  # no public way to ask tapes

# Programs that only look at gradients would collect tapes; those that sum up several reduced gradients before they
# apply the sum need those of the last few.
_MOST = 8


class ReducedMarks:
    """The reduced gradients that have been handed out."""

    def __init__(self) -> None:
        self._eager: list[_Watched] = []
        self._in_graphs: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

    def add(self, grads: Sequence[Any]) -> None:
        """These have been reduced."""
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
        """For each gradient: is it a reduced one, or made of reduced ones? None is."""
        return [all(self._is_reduced(part) for part in _parts(grad)[:1]) for grad in grads]

    def applied(self, grads: Sequence[Any]) -> None:
        """An update has been made with these: eagerly, what was handed out before is not waited for any more."""
        tensors = [part for grad in grads for part in _parts(grad) if not _is_symbolic(part)]
        ids = {id(tensor) for tensor in tensors}
        same = [watched for watched in self._eager if watched.holds(ids)]
        # Others than those handed out may be made of any of them: the first computed is the first applied.
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
        """Follows the operations that ``tensor`` is the outcome of, out of functions within functions too."""
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
    """Eager gradients that were handed out, and the tape that follows them."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = [weakref.ref(tensor) for tensor in tensors]
        self._thread = threading.get_ident()
        self._tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
        self._tape.__enter__()
        self._tape.watch([tensor for tensor in tensors if tensor.dtype.is_floating])

    def holds(self, ids: set[int]) -> bool:
        return any(ref() is not None and id(ref()) in ids for ref in self._tensors)

    def end(self) -> None:
        if threading.get_ident() == self._thread:  # each has tapes of its own
            self._tape.__exit__(None, None, None)


def _parts(grad: Any) -> list[Any]:
    """The tensors whose origin tells that of ``grad``."""
    if grad is None:
        return []
    return [grad.values if isinstance(grad, tf.IndexedSlices) else grad]


def _is_symbolic(tensor: Any) -> bool:
    return not hasattr(tensor, "numpy")


def _captured(placeholder: Any) -> list[Any]:
    """What a function has taken from around it by this placeholder."""
    captures = getattr(placeholder.graph, "captures", ())
    return [outer for outer, inner in captures if inner is placeholder]
