"""Conversion of arguments of collectives: pytrees, leaf names, and dtypes that the engine lacks."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from horovod.common.ops import Max, Min, Product, Sum, op_name, wire_name

_SMALL_FLOATS = "float8"
_TWINS = {"uint32": "int32", "uint64": "int64"}


def flat(tree: Any) -> tuple[list[Any], list[str], Any]:
    """Flatten a pytree.

    Returns:
        (leaves as arrays, path of each leaf ("" if the tree is a single array), structure of the tree).

    Raises:
        ValueError: If a leaf is not an array or number.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    places = [jax.tree_util.keystr(path) for path, _ in pairs]
    return [_array(leaf, place) for (_, leaf), place in zip(pairs, places, strict=True)], places, structure


def _array(leaf: Any, place: str) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError):
        raise ValueError(
            f"{place or 'the tensor'} must be an array, a number or a pytree of them, got a {type(leaf).__name__}"
        ) from None
    except OverflowError:
        kind = jnp.asarray(0).dtype
        bounds = jnp.iinfo(kind)
        raise ValueError(
            f"{place or 'the tensor'} must be from {bounds.min} to {bounds.max} as a Python integer, the range of "
            f"{kind.name}, got {leaf}; pass an array for other values"
        ) from None


def full_names(operation: str, name: str | None, places: Sequence[str]) -> list[str]:
    """Return the operation name of each leaf, or "" for every leaf if ``name`` is None.

    For example, the leaf ``['w']`` of an argument named "grads" becomes ``allreduce.grads['w']``.

    Raises:
        ValueError: If ``name`` is not a string.
    """
    full = wire_name(operation, name)
    return [full and full + place for place in places]


def to_reduce(array: Any, op: int, scaled: bool, what: str) -> tuple[Any, Callable[[Any], Any]]:
    """Convert an array to a reducible dtype.

    8-bit floats are reduced as float32, and unsigned 32- and 64-bit integers as signed integers. ``scaled`` is True if
    any scale factor differs from 1.

    Returns:
        The converted array, and a function that converts results back.

    Raises:
        ValueError: If the array has unsigned 32- or 64-bit integers, and ``op`` is Average or there is a scale factor.
    """
    dtype = array.dtype
    if dtype.name.startswith(_SMALL_FLOATS):
        return array.astype(jnp.float32), lambda reduced: reduced.astype(dtype)
    if dtype.name not in _TWINS:
        return array, _same
    if op not in (Sum, Product, Min, Max) or scaled:
        factors = " with factors" if scaled else ""
        raise ValueError(
            f"{what}: op must be Sum, Min, Max or Product without factors for dtype {dtype.name}, got "
            f"{op_name(op)}{factors}; or use another dtype such as int32 or float32"
        )
    # Sums and products of signed and unsigned integers have the same bits, but Min and Max do not. Flip the highest bit
    # before and after Min and Max.
    flip = jnp.asarray(1 << (8 * dtype.itemsize - 1) if op in (Min, Max) else 0, dtype)
    twin = lax.bitcast_convert_type(array ^ flip, _TWINS[dtype.name])
    return twin, lambda reduced: lax.bitcast_convert_type(reduced, dtype) ^ flip


def to_copy(array: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Convert an array to a dtype that the engine can send.

    8-bit floats are sent as bfloat16, which represents all their values exactly, and unsigned integers as signed
    integers.

    Returns:
        The converted array, and a function that converts results back.
    """
    dtype = array.dtype
    if dtype.name.startswith(_SMALL_FLOATS):
        return array.astype(jnp.bfloat16), lambda copied: copied.astype(dtype)
    if dtype.name in _TWINS:
        return lax.bitcast_convert_type(array, _TWINS[dtype.name]), lambda c: lax.bitcast_convert_type(c, dtype)
    return array, _same


def _same(value: Any) -> Any:
    return value
