"""Compares an optimizer with a copy that was rebuilt from its config.

A config contains only what the optimizer's ``get_config`` returns. It loses the arguments of a subclass that does not
override ``get_config``, attributes that were set after construction, and parts of a schedule whose ``get_config`` is
incomplete. This module therefore compares the two optimizers attribute by attribute. Values that cannot be compared
count as different.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from horovod._keras.backend import is_legacy

_DEEPEST = 12


def differing(keras: Any, optimizer: Any, wrapped: Any) -> list[str]:
    """Return the names of the attributes in which two optimizers differ.

    Args:
        keras: Keras module of both optimizers.
        optimizer: An optimizer that has not taken a step.
        wrapped: An optimizer of the same class, or of a subclass that adds no attributes.
    """
    to_numpy = (lambda value: value.numpy()) if is_legacy(keras) else keras.ops.convert_to_numpy
    comparison = _Comparison(_bookkeeping(keras, optimizer, to_numpy), to_numpy)
    ours, theirs = comparison.attributes(optimizer), comparison.attributes(wrapped)
    missing = theirs.keys() - ours.keys()
    return [n for n, one in ours.items() if n not in theirs or not comparison.alike(one, theirs[n])] + sorted(missing)


class _Comparison:
    def __init__(self, left_out: frozenset[str], to_numpy: Callable[[Any], Any]) -> None:
        self._left_out = left_out
        self._to_numpy = to_numpy

    def attributes(self, value: Any) -> dict[str, Any]:
        left_out = self._left_out if hasattr(value, "apply_gradients") else frozenset()
        # Skip TensorFlow's own attribute-tracking fields, whose names begin with _self_.
        return {n: one for n, one in vars(value).items() if n not in left_out and not n.startswith("_self_")}

    def alike(self, a: Any, b: Any, depth: int = 0) -> bool:
        if a is b:
            return True
        if depth > _DEEPEST:
            return False
        if isinstance(a, (bool, int, float, complex, str, bytes, type(None))):
            return type(a) is type(b) and (a == b or (a != a and b != b))
        if isinstance(a, (list, tuple)):
            return (
                isinstance(b, (list, tuple))
                and len(a) == len(b)
                and all(self.alike(x, y, depth + 1) for x, y in zip(a, b, strict=True))
            )
        if isinstance(a, (dict, Mapping)):
            return (
                isinstance(b, (dict, Mapping))
                and a.keys() == b.keys()
                and all(self.alike(a[key], b[key], depth + 1) for key in a)
            )
        if hasattr(a, "dtype") and hasattr(a, "shape"):
            return self._same_array(a, b)
        return self._same_object(a, b, depth)

    def _same_array(self, a: Any, b: Any) -> bool:
        try:
            x, y = (np.asarray(one if isinstance(one, np.ndarray) else self._to_numpy(one)) for one in (a, b))
            return x.dtype == y.dtype and bool(np.array_equal(x, y, equal_nan=x.dtype.kind in "fc"))
        except Exception:  # Values such as symbolic tensors cannot be compared.
            return False

    def _same_object(self, a: Any, b: Any, depth: int) -> bool:
        if type(a) is not type(b) or not hasattr(a, "__dict__") or isinstance(a, type) or _has_hidden_state(a):
            return False
        ours, theirs = self.attributes(a), self.attributes(b)
        return ours.keys() == theirs.keys() and all(self.alike(ours[key], theirs[key], depth + 1) for key in ours)


def _has_hidden_state(value: Any) -> bool:
    """Return True for functions, methods and other objects that have no comparable attributes."""
    if hasattr(value, "__code__") or hasattr(value, "__func__") or isinstance(value, functools.partial):
        return True
    return any(set(vars(kind).get("__slots__", ())) - {"__dict__", "__weakref__"} for kind in type(value).__mro__)


def _bookkeeping(keras: Any, optimizer: Any, to_numpy: Callable[[Any], Any]) -> frozenset[str]:
    """Return the attributes that differ even between two identically constructed Keras optimizers."""
    legacy = hasattr(optimizer, "_set_hyper")
    kind = keras.optimizers.legacy.SGD if legacy else keras.optimizers.SGD
    first = kind(0.5)
    ours, theirs = vars(first), vars(kind.from_config(first.get_config()))
    compare = _Comparison(frozenset(), to_numpy)
    return frozenset(name for name in ours if name not in theirs or not compare.alike(ours[name], theirs[name]))
