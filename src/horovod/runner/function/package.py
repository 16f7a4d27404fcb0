"""Functions that serialize `horovod.run`'s function and arguments, even in notebooks and interactive sessions."""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import linecache
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import cloudpickle

from horovod.common.contract.pickling import dumps
from horovod.runner.function.outcome import type_name

CODE_LIMIT = 4 << 20  # At most CODE_LIMIT characters of notebook code are sent to the workers, for their tracebacks.


def check(function: Any, args: Any, kwargs: Any, name: str = "func") -> None:
    """Raise TypeError if the function cannot be called with these arguments.

    `name` is the function's name in the message.
    """
    if not callable(function):
        raise TypeError(f"{name} must be a function, got {function!r}")
    if isinstance(args, (str, bytes, Mapping)) or not isinstance(args, Iterable):
        raise TypeError(f"args must be a tuple or list of arguments, got {args!r}; write args=({args!r},)")
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict of arguments by name, got {kwargs!r}")


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str = "func") -> bytes:
    """Serialize the function and its arguments with cloudpickle.

    The result includes the caller's module search path, and code that is not in a file, such as notebook cells.

    Args:
        function: Function to call in the workers.
        args: Positional arguments of the function.
        kwargs: Keyword arguments of the function.
        name: Name of the function in messages.

    Raises:
        TypeError: The function cannot be called with these arguments, or cannot be pickled. The message names the
            argument or variable that causes the error.
    """
    check(function, args, kwargs, name)
    module = _unreachable_module(function)
    if module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        try:
            body = dumps((function, tuple(args), dict(kwargs)))
        except Exception as error:
            what = next(_unpicklable(function, args, kwargs), "func together with its arguments")
            raise TypeError(f"{what} cannot be sent to the workers: {type(error).__name__}: {error}") from error
    finally:
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)
    return pickle.dumps((search_path(sys.path), _code_in_no_file(), body))


def search_path(path: Sequence[object]) -> tuple[list[str], list[str]]:
    """Split the module search path into the entries before Python's standard library, and the remaining entries.

    Relative entries are made absolute, because the function can change the current directory.
    """
    entries = [_resolved(entry) for entry in path if isinstance(entry, str)]
    library = os.path.dirname(os.__file__)
    archive = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    own = (n for n, entry in enumerate(entries) if entry == library or os.path.basename(entry) == archive)
    begin = next(own, 0)
    return entries[:begin], entries[begin:]


def _resolved(entry: str) -> str:
    """Return the absolute path of an entry of sys.path.

    An entry that is not a path is returned unchanged, because an import hook might use it.
    """
    return os.path.abspath(entry) if not entry or os.path.exists(entry) else entry


def _unreachable_module(function: Callable[..., Any]) -> ModuleType | None:
    """Return the function's module if workers cannot import it. The module must then be pickled by value."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__module__", None) or type(function).__module__
    module = sys.modules.get(name)
    if module is None or name in ("__main__", "builtins"):
        return None
    root = name.partition(".")[0]
    finders: list[Any] = [*sys.meta_path, importlib.machinery.PathFinder]
    for finder in finders:
        find = getattr(finder, "find_spec", None)
        if find is not None and find(root, None) is not None:
            return None
    return module


def _unpicklable(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Yield a description of each argument or variable that cannot be pickled."""
    for name, value in [
        *((f"args[{i}]", v) for i, v in enumerate(args)),
        *((f"kwargs[{k!r}]", kwargs[k]) for k in kwargs),
    ]:
        if not _picklable(value):
            yield f"{name}, of type {type_name(value)},"
    if _picklable(function):
        return
    label = f"func, {getattr(function, '__qualname__', type_name(function))},"
    try:
        used = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # getclosurevars accepts only plain functions.
        used = inspect.ClosureVars({}, {}, {}, set())
    for name, value in {**used.nonlocals, **used.globals}.items():
        if not _picklable(value):
            yield f"{label} which uses {name!r}, of type {type_name(value)},"
    yield label


def _picklable(value: object) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


def _code_in_no_file() -> dict[str, list[str]]:
    """Return code from notebook cells and interactive input, newest first. The keys are file names in tracebacks."""
    found: dict[str, list[str]] = {}
    left = CODE_LIMIT
    for name, entry in reversed(list(linecache.cache.items())):
        if len(entry) != 4 or os.path.exists(name):  # Skip code that comes from a file.
            continue
        lines = entry[2]
        left -= sum(map(len, lines))
        if left < 0:
            break
        found[name] = list(lines)
    return found
