"""Implementation of ``check_in_sync``, which checks that all ranks have equal values.

The ranks first exchange digests. If the digests differ, a second exchange finds the first difference.

Each frontend has a reader. The reader converts a tensor to an ``Array``, and a model or optimizer to a mapping of its
parts. The parts of mappings and sequences are compared one by one. Numbers, strings, sets and NumPy arrays are compared
by value, and functions and classes by name. Other objects are compared by ``state_dict()``, or by their attributes
without such a method. Models, layers, optimizers and variables of Keras and TensorFlow are recognized by their
attributes, so no framework is imported.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from horovod.common.contract import reasons
from horovod.common.exceptions import OutOfSyncError
from horovod.common.frontends import Frontend
from horovod.common.objects import allgather_object
from horovod.common.process_sets import ProcessSet

SMALL = 6
"""Maximum number of values for which a message shows the whole tensor."""
_TEXT = 80  # maximum number of characters of a string in a message
_ACCEPTED = (
    "a model, optimizer, scheduler or another object with state_dict(), a tensor, variable, array, number, text, None, "
    "or a dict or list of these"
)


@dataclass(frozen=True)
class Array:
    """Framework-independent view of a tensor, created by a frontend's reader."""

    dtype: str
    shape: tuple[int, ...]
    data: Any
    """Values in row-major order: bytes, or an object with the buffer protocol."""
    values: Callable[[], Sequence[Any]]
    """Function that returns all values as a flat sequence of Python numbers. Called only for small tensors."""
    label: str = ""
    """Additional name for messages, such as a variable's path."""


@dataclass(frozen=True)
class Leaf:
    """Digest of one compared value, and its text for messages."""

    digest: bytes
    shown: str
    """Text of the value for messages."""
    exact: bool = True
    """True if ``shown`` is the complete value."""


Reader = Callable[[Any], Any]
"""Function that converts a frontend's objects to an Array or a mapping, and returns others unchanged."""


def fingerprints(objects: Mapping[str, Any], read: Reader, ignore: Collection[str] = ()) -> dict[str, Leaf]:
    """Return all values in ``objects`` by path, such as ``optimizer.state[3].exp_avg``, in order of occurrence.

    Args:
        objects: Objects by name.
        read: Reader of the frontend.
        ignore: Paths, or patterns such as ``model.head.*``, to skip.

    Raises:
        ValueError: If an object contains nothing that can be compared. The message names the argument.
    """
    leaves: dict[str, Leaf] = {}
    for name, value in objects.items():
        _refuse(name, read(value))
        for path, leaf in _walk(name, value, read, ()):
            if not any(path == pattern or fnmatchcase(path, pattern) for pattern in ignore):
                leaves[path] = leaf
    return leaves


def digest_of(leaves: Mapping[str, Leaf]) -> str:
    """Return the SHA-256 of all values, in hexadecimal. The order of the values does not matter."""
    digest = hashlib.sha256()
    for path in sorted(leaves):
        encoded = path.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded + leaves[path].digest)
    return digest.hexdigest()


def named(objects: Sequence[Any], keywords: Mapping[str, Any], name_of: Callable[[Any], str]) -> dict[str, Any]:
    """Merge positional and keyword arguments into one dict that maps names to objects.

    Args:
        objects: Positional arguments, which have no names.
        keywords: Keyword arguments, by name.
        name_of: Function that chooses a name for a positional argument. Repeated names get a suffix _2, _3, ...

    Raises:
        ValueError: If no object is passed.
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
    """Check the argument ``ignore`` and return it as a tuple. Raises ValueError if it is not a list of strings."""
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
        return  # the objects refer to each other in a cycle, so stop
    within = (*within, id(value))
    for step, part in _parts(value):
        yield from _walk(path + step, part, read, within)


def _leaf(value: Any) -> Leaf | None:
    """Convert a single value to a ``Leaf``. Return None for a container object."""
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
    """Yield each part of an object as (suffix to append to the object's path, part)."""
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


# Maximum number of different values in a message.
_VALUES = 4
# Maximum number of additional paths that a message lists after the first one.
_PATHS = 5
_MISSING = Leaf(b"", "missing")


def check(leaves: Callable[[], dict[str, Leaf]], process_set: ProcessSet, frontend: Frontend) -> str:
    """Compare this rank's values with those of the other ranks of the set. All ranks of the set must call this.

    Args:
        leaves: Function that returns this rank's values by path.
        process_set: Ranks to compare.
        frontend: Frontend that submits the operations.

    Returns:
        SHA-256 of the values in hexadecimal, equal on all ranks.

    Raises:
        OutOfSyncError: If values differ or if ``leaves`` raises on another rank; raised on all ranks. A rank on which
            ``leaves`` raises gets that error instead. Also raises errors from ``allgather_object``.
    """
    own: dict[str, Leaf] = {}
    failure: Exception | None = None
    try:
        own = leaves()
        reply = (digest_of(own), "")
    except Exception as error:  # send the error to the other ranks, which are waiting for this rank
        failure = error
        reply = ("", f"{type(error).__name__}: {error}"[:1000])
    answers = allgather_object(reply, "check_in_sync", process_set, frontend)
    if failure is not None:
        raise failure
    ranks = process_set.ranks or ()
    for rank, (_, reason) in zip(ranks, answers, strict=True):
        if reason:
            raise OutOfSyncError(f"check_in_sync: rank {rank} could not tell what it holds: {reason}")
    if len(set(answers)) == 1:
        return reply[0]
    details = allgather_object(
        {path: (leaf.digest, leaf.shown, leaf.exact) for path, leaf in own.items()},
        "check_in_sync.details",
        process_set,
        frontend,
    )
    tables = [{path: Leaf(*leaf) for path, leaf in table.items()} for table in details]
    raise OutOfSyncError(report(ranks, tables))


def report(ranks: Sequence[int], tables: Sequence[Mapping[str, Leaf]]) -> str:
    """Describe a mismatch: name the paths that differ, and show the first path's values.

    Args:
        ranks: World ranks.
        tables: Values by path for each rank. Paths are named in the first rank's order.
    """
    paths = list(dict.fromkeys(path for table in tables for path in table))
    different = [path for path in paths if len({table.get(path, _MISSING).digest for table in tables}) > 1]
    first, more = different[0], different[1:]
    holders: dict[bytes, tuple[Leaf, list[int]]] = {}
    for rank, table in zip(ranks, tables, strict=True):
        leaf = table.get(first, _MISSING)
        holders.setdefault(leaf.digest, (leaf, []))[1].append(rank)
    text = f"check_in_sync: the ranks differ: {first} {_values(list(holders.values()))}; "
    text += f"{len(different)} of {len(paths)} values differ"
    if more:
        text += ", also " + ", ".join(more[:_PATHS]) + (", ..." if len(more) > _PATHS else "")
    return text


def _values(holders: Sequence[tuple[Leaf, Sequence[int]]]) -> str:
    """Describe the values at one path, with the ranks that have each value."""
    named, others = holders[:_VALUES], ""
    if len(holders) > _VALUES:
        others = f", and {len(holders) - _VALUES} more values"
    if _MISSING in [leaf for leaf, _ in holders] or all(leaf.exact for leaf, _ in holders):
        return "is " + " and ".join(f"{leaf.shown} on {reasons.named_ranks(who)}" for leaf, who in named) + others
    parts = [f"{'one' if i == 0 else 'another'} on {reasons.named_ranks(who)}" for i, (_, who) in enumerate(named)]
    return f"({holders[0][0].shown}) is " + ", ".join(parts) + others


# Keras optimizer variables whose values intentionally differ between ranks.
#
# If gradients are reduced only after Keras has accumulated them, each rank's accumulators hold its local gradients.
# They must be neither broadcast nor compared.
_MARK = "_hvd_own"


def mark_own(variables: Iterable[Any]) -> None:
    """Mark variables whose values intentionally differ between ranks. None entries are skipped."""
    for variable in variables:
        if variable is not None:
            setattr(variable, _MARK, True)


def is_own(variable: Any) -> bool:
    """Return True if ``mark_own`` has marked the variable."""
    return getattr(variable, _MARK, False) is True


# Each rank computes the moving statistics of batch normalization from its own batches.
_OWN = ("moving_mean", "moving_variance")


def reader(to_numpy: Callable[[Any], Any], is_local: Callable[[Any], bool] = lambda variable: False) -> Reader:
    """Create the function that reads the variables, models and optimizers of TensorFlow or Keras.

    Args:
        to_numpy: Function that converts a tensor or variable to an array.
        is_local: Function that returns True for a model variable to skip. The moving statistics of batch normalization
            are always skipped.
    """

    def read(value: Any) -> Any:
        if hasattr(value, "apply_gradients"):
            return {"variables": [None if is_own(one) else one for one in optimizer_variables(value)]}
        if hasattr(value, "get_weights"):
            weights = [None if _is_own(variable) or is_local(variable) else variable for variable in value.weights]
            optimizer = getattr(value, "optimizer", None)
            # Compare the optimizer first, because a different learning rate often causes different weights.
            return {"weights": weights} if optimizer is None else {"optimizer": optimizer, "weights": weights}
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return _array(to_numpy(value), _label(value))
        return value

    return read


def name_of(value: Any) -> str:
    """Choose a name for an object that was passed without one."""
    if hasattr(value, "apply_gradients"):
        return "optimizer"
    return "model" if hasattr(value, "get_weights") else type(value).__name__


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Return all variables of a Keras optimizer and its inner optimizer. ``variables`` can be a list or a method."""
    if optimizer is None:
        return []
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def _is_own(variable: Any) -> bool:
    return _label(variable).rpartition("/")[2] in _OWN


def _label(variable: Any) -> str:
    """Return a variable's path, such as ``dense/kernel``, or "" for a tensor."""
    if not hasattr(variable, "assign"):
        return ""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "")).partition(":")[0]


def _array(array: Any, label: str) -> Any:
    # Convert arrays of strings and of objects to lists, because ``Array`` can contain only numbers.
    if getattr(array, "dtype", None) is None or array.dtype.kind == "O":
        return array.tolist() if hasattr(array, "tolist") else array
    return Array(str(array.dtype), tuple(array.shape), array.tobytes(), lambda: array.reshape(-1).tolist(), label)
