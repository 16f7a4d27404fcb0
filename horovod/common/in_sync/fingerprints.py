"""What nested objects hold, as (path, digest) pairs that ranks can compare: the pure part of ``check_in_sync``.

A face's reader turns its own objects into what is walked here: a tensor becomes an ``Array``, a model or an optimizer a
mapping of its parts. Mappings and sequences are walked; numbers, texts, sets and NumPy's arrays are values; functions
and classes count by their names; of other objects ``state_dict()`` counts, else their attributes.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

SMALL = 6
"""A tensor of so many values at most is shown whole."""
_TEXT = 80  # characters shown of a text
_ACCEPTED = (
    "accepted are models, optimizers, schedulers and other objects with state_dict(), tensors, variables, arrays, "
    "numbers, texts, None, and dicts and lists of these"
)


@dataclass(frozen=True)
class Array:
    """A tensor, as its face reads it."""

    dtype: str
    shape: tuple[int, ...]
    data: Any
    """Its values in row-major order: bytes, or anything with the buffer protocol."""
    values: Callable[[], Sequence[Any]]
    """All of them, flat, as Python's numbers; asked for small ones only."""
    label: str = ""
    """Another name that people know it by."""


@dataclass(frozen=True)
class Leaf:
    """One value."""

    digest: bytes
    shown: str
    """For messages."""
    exact: bool = True
    """Does ``shown`` say all of it?"""


Reader = Callable[[Any], Any]
"""Of a face: an Array or a mapping for an object that it knows, any other object as it is."""


def table(objects: Mapping[str, Any], read: Reader, ignore: Collection[str] = ()) -> dict[str, Leaf]:
    """The leaves of ``objects`` by path, as in ``optimizer.state[3].exp_avg``, in the order in which they come.

    ``ignore``: paths, or patterns as in ``model.head.*``, to leave out. ValueError, naming the argument, for objects of
    which nothing could be compared.
    """
    leaves: dict[str, Leaf] = {}
    for name, value in objects.items():
        _refuse(name, read(value))
        for path, leaf in _walk(name, value, read, ()):
            if not any(path == pattern or fnmatchcase(path, pattern) for pattern in ignore):
                leaves[path] = leaf
    return leaves


def whole(leaves: Mapping[str, Leaf]) -> str:
    """SHA-256 of all of them, in hexadecimal; their order does not matter."""
    digest = hashlib.sha256()
    for path in sorted(leaves):
        encoded = path.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded + leaves[path].digest)
    return digest.hexdigest()


def named(objects: Sequence[Any], keywords: Mapping[str, Any], name_of: Callable[[Any], str]) -> dict[str, Any]:
    """All objects by name: ``name_of`` an object that was given without one, its second namesake with _2 and so on.

    ValueError without any.
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
        raise ValueError(f"check_in_sync: no object is given; {_ACCEPTED}")
    return result


def check_ignore(ignore: Any) -> tuple[str, ...]:
    """``ignore`` as a tuple. ValueError for what is no list of texts."""
    if isinstance(ignore, str) or not isinstance(ignore, Collection) or not all(isinstance(p, str) for p in ignore):
        raise ValueError(f"check_in_sync: ignore is {ignore!r}; accepted is a list of paths or patterns")
    return tuple(ignore)


def _refuse(name: str, value: Any) -> None:
    kind = type(value).__name__
    if isinstance(value, Iterator) or (callable(value) and not hasattr(value, "state_dict")):
        what = "an iterator, which would be used up" if isinstance(value, Iterator) else f"a {kind}"
        raise ValueError(f"check_in_sync: {name} is {what}; {_ACCEPTED}")


def _walk(path: str, value: Any, read: Reader, within: tuple[int, ...]) -> Iterator[tuple[str, Leaf]]:
    value = read(value)
    leaf = _leaf(value)
    if leaf is not None:
        yield path, leaf
        return
    if id(value) in within:
        return  # a cycle; what is in it has been seen
    within = (*within, id(value))
    for step, part in _parts(value):
        yield from _walk(path + step, part, read, within)


def _leaf(value: Any) -> Leaf | None:
    """None for what has parts."""
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
    """(what is added to the path, part)."""
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
