"""Conversion of operation arguments to NumPy arrays.

Operations accept NumPy arrays and scalars, Python numbers, and objects that support ``__array_interface__``, buffers
(``array.array``, ``memoryview``, ``bytearray``), DLPack (CPU tensors of PyTorch, JAX arrays) or ``__array__``. Results
are NumPy arrays. In-place operations write to the memory of their argument.
"""

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod._arrays.checks import Array
from horovod._arrays.collectives import plain
from horovod.common.dtypes import class_name, is_immutable

_ARRAYS = (
    "a NumPy array, a number, or an object with __array_interface__, a buffer, DLPack (memory of the CPU) or __array__"
)


@dataclass(frozen=True)
class Argument:
    """Argument of an operation, converted to a NumPy array."""

    value: Any
    """Object that the caller passed."""
    view: Array
    """``value`` as an array. For an in-place operation, it shares the memory of ``value``."""
    array: Array
    """Array that the engine reads: ``view``, or a copy if ``view`` is not aligned and in C order."""

    def put_back(self, result: Array) -> Any:
        """Store the result of an in-place operation in the caller's object, and return that object."""
        if result is not self.view:
            self.view[...] = result
        return self.value


def take(value: Any, what: str, in_place: bool = False) -> Argument:
    """Convert ``value`` to an array.

    With ``in_place``, the memory of ``value`` must be writable.

    Returns:
        The array.

    Raises:
        ValueError: If the type of ``value`` is not supported. The message begins with ``what`` (operation, name and
            rank), and names the type of ``value`` and the supported types.
    """
    view = _own(value, what)
    if view is None:
        view = _view(value, what, in_place)
    if in_place and not view.flags.writeable:
        raise ValueError(
            f"{what}: the {class_name(value)} cannot be changed in place, because it is not writable; use the "
            "operation that returns a new array"
        )
    return Argument(value, view, plain(view))


def take_all(values: Any, what: str, in_place: bool = False) -> list[Argument]:
    """Convert each value of a sequence to an array; see ``take``."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise ValueError(f"{what}: tensors must be a list of arrays, got a {class_name(values)}")
    return [take(value, what, in_place) for value in values]


def _own(value: Any, what: str) -> Array | None:
    """Convert a NumPy or Python value to an array, or return None for any other object."""
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{what}: the tensor must not be a masked array, whose mask would be lost; pass its data and its mask "
            "separately"
        )
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, np.generic | numbers.Number):
        made = np.asarray(value)
        # Make the array read-only, because a Python number cannot be changed in place.
        made.flags.writeable = False
        return made
    return None


def _view(value: Any, what: str, in_place: bool) -> Array:
    if isinstance(value, list | tuple | dict | set | str):
        raise ValueError(f"{what}: the tensor must be {_ARRAYS}, got a {class_name(value)}")
    if in_place and is_immutable(value):
        raise ValueError(
            f"{what}: a {class_name(value)} cannot be changed in place; use the operation that returns a new array"
        )
    problem: Exception | None = None
    # Do not use `__array__` for in-place operations, because it can return a copy.
    ways = _WAYS[:-1] if in_place else _WAYS
    for has, view in ways:
        if has is not None and not hasattr(value, has):
            continue
        try:
            return view(value)
        except (TypeError, ValueError, BufferError, RuntimeError, NotImplementedError) as error:
            problem = problem if has is None else error
    reason = f" ({problem})" if problem is not None else ""
    raise ValueError(f"{what}: the tensor must be {_ARRAYS}, got a {class_name(value)}{reason}")


_WAYS: tuple[tuple[str | None, Callable[[Any], Array]], ...] = (
    ("__array_interface__", np.asarray),
    (None, lambda value: np.asarray(memoryview(value))),
    ("__dlpack__", np.from_dlpack),
    ("__array__", np.asarray),
)
"""Conversions to try, as (attribute that the object must have, function). The attribute of buffers is None."""
