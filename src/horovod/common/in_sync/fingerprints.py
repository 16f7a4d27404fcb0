"""Digests of nested objects by path, which ranks can compare; the pure part of ``check_in_sync``.

A frontend's reader converts its objects: a tensor becomes an ``Array``, a model or optimizer a mapping of its parts.
Mappings and sequences are traversed. Numbers, strings, sets and NumPy arrays are values. Functions and classes are
compared by name. Other objects are compared by ``state_dict()``, or else by their attributes.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

SMALL = 6
"""Maximum number of values for a tensor to be shown completely."""
_TEXT = 80  # maximum characters shown of a string
_ACCEPTED = (
    "a model, optimizer, scheduler or another object with state_dict(), a tensor, variable, array, number, text, None, "
    "or a dict or list of these"
)


@dataclass(frozen=True)
class Array:
    """Tensor converted by its frontend's reader."""

    dtype: str
    shape: tuple[int, ...]
    data: Any
    """Values in row-major order: bytes, or an object with the buffer protocol."""
    values: Callable[[], Sequence[Any]]
    """Returns all values as a flat sequence of Python numbers; called for small tensors only."""
    label: str = ""
    """Additional name for messages, such as a variable's path."""


@dataclass(frozen=True)
class Leaf:
    """Single value, as its digest and text."""

    digest: bytes
    shown: str
    """Text for messages."""
    exact: bool = True
    """True if ``shown`` is the complete value."""


Reader = Callable[[Any], Any]
"""Conversion of a frontend: returns an Array or a mapping for its own objects, and other objects unchanged."""


def table(objects: Mapping[str, Any], read: Reader, ignore: Collection[str] = ()) -> dict[str, Leaf]:
    """Return the leaves of ``objects`` by path, such as ``optimizer.state[3].exp_avg``, in order of occurrence.

    Args:
        objects: Objects by name.
        read: Reader of the frontend.
        ignore: Paths to leave out, or patterns such as ``model.head.*``.

    Raises:
        ValueError: If an object has nothing that can be compared; names the argument.
    """
    leaves: dict[str, Leaf] = {}
    for name, value in objects.items():
        _refuse(name, read(value))
        for path, leaf in _walk(name, value, read, ()):
            if not any(path == pattern or fnmatchcase(path, pattern) for pattern in ignore):
                leaves[path] = leaf
    return leaves


def whole(leaves: Mapping[str, Leaf]) -> str:
    """Return the SHA-256 of all leaves in hexadecimal, independent of their order."""
    digest = hashlib.sha256()
    for path in sorted(leaves):
        encoded = path.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded + leaves[path].digest)
    return digest.hexdigest()


def named(objects: Sequence[Any], keywords: Mapping[str, Any], name_of: Callable[[Any], str]) -> dict[str, Any]:
    """Return all objects by name.

    Args:
        objects: Objects without a name.
        keywords: Objects with a name.
        name_of: Returns the name of an object without one; repeated names get a suffix _2, _3, ...

    Raises:
        ValueError: If there is no object.
    """
    result: dict[str, Any] = {}
    for value in objects:
        name = name_of(value)
        number, free = 1, name
        while free in result or free in keywords:
            number += 1
            free = f"{name}_{number}"
        result[free] = value
    result.update(keywords)
    if not result:
        raise ValueError(f"check_in_sync: an object must be given; pass {_ACCEPTED}")
    return result


def check_ignore(ignore: Any) -> tuple[str, ...]:
    """Return ``ignore`` as a tuple. Raises ValueError if it is not a list of strings."""
    if isinstance(ignore, str) or not isinstance(ignore, Collection) or not all(isinstance(p, str) for p in ignore):
        raise ValueError(f"check_in_sync: ignore must be a list of paths or patterns, got {ignore!r}")
    return tuple(ignore)


def _refuse(name: str, value: Any) -> None:
    kind = type(value).__name__
    if isinstance(value, Iterator) or (callable(value) and not hasattr(value, "state_dict")):
        what = "an iterator, which would be used up" if isinstance(value, Iterator) else f"a {kind}"
        raise ValueError(f"check_in_sync: {name} must be {_ACCEPTED}, got {what}")


def _walk(path: str, value: Any, read: Reader, within: tuple[int, ...]) -> Iterator[tuple[str, Leaf]]:
    value = read(value)
    leaf = _leaf(value)
    if leaf is not None:
        yield path, leaf
        return
    if id(value) in within:
        return  # a cycle; its contents have been visited
    within = (*within, id(value))
    for step, part in _parts(value):
        yield from _walk(path + step, part, read, within)


def _leaf(value: Any) -> Leaf | None:
    """Return the value as a Leaf; None if it has parts."""
    if isinstance(value, Array):
        return _of_array(value)
    if isinstance(value, Enum):
        return _of_text("enum", str(value))
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | bytearray):
        return _of_text(type(value).__name__, repr(value))
    if hasattr(value, "dtype") and hasattr(value, "tobytes") and getattr(value.dtype, "kind", "O") != "O":
        array = Array(str(value.dtype), tuple(value.shape), value.tobytes(), lambda: value.reshape(-1).tolist())
        return _of_array(array)
    if isinstance(value, Set):
        members = sorted((found or _of_text("?", type(m).__name__) for m in value for found in [_leaf(m)]), key=_digest)
        return Leaf(
            _hash("set", *(member.digest for member in members)), "{" + ", ".join(m.shown for m in members) + "}"
        )
    if callable(value) and hasattr(value, "__qualname__"):
        return _of_text("function", f"{value.__module__}.{value.__qualname__}")
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (suffix of the path, part)."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield (f".{key}" if isinstance(key, str) else f"[{key!r}]"), part
    elif isinstance(value, Sequence) or (hasattr(value, "tolist") and hasattr(value, "dtype")):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif callable(getattr(value, "state_dict", None)):
        for step, part in _parts(value.state_dict()):
            yield step, part
    else:
        yield ".(type)", f"{type(value).__module__}.{type(value).__qualname__}"
        for key, part in vars(value).items() if hasattr(value, "__dict__") else ():
            yield f".{key}", part


def _of_array(array: Array) -> Leaf:
    count = 1
    for extent in array.shape:
        count *= extent
    text = f"{array.dtype} of shape {array.shape}"
    exact = count <= SMALL
    if exact:
        numbers = ", ".join(map(repr, array.values()))
        text = numbers if array.shape == () else f"[{numbers}]" if len(array.shape) == 1 else f"{text}: {numbers}"
    digest = _hash("array", array.dtype.encode(), repr(array.shape).encode(), array.data)
    return Leaf(digest, f"{text} ({array.label})" if array.label else text, exact)


def _of_text(kind: str, text: str) -> Leaf:
    shown = text if len(text) <= _TEXT else text[:_TEXT] + "..."
    return Leaf(_hash(kind, text.encode(errors="surrogatepass")), shown, shown == text)


def _digest(leaf: Leaf) -> bytes:
    return leaf.digest


def _hash(kind: str, *parts: Any) -> bytes:
    digest = hashlib.sha256(kind.encode() + b"\0")
    for part in parts:
        digest.update(part)
    return digest.digest()
