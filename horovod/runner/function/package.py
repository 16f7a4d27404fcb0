"""The function of `horovod.run` and its arguments as bytes for the workers, whatever the caller is: a script, a
notebook, an interactive session, a test.
"""

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

CODE_LIMIT = 4 << 20  # characters of code that is in no file; what is beyond has no lines in tracebacks


def check(function: Any, args: Any, kwargs: Any, name: str = "func") -> None:
    """Raises TypeError for what cannot be called so, naming the argument. `name`: of the function's."""
    if not callable(function):
        raise TypeError(f"{name} is {function!r}, accepted is a function")
    if isinstance(args, (str, bytes, Mapping)) or not isinstance(args, Iterable):
        raise TypeError(f"args is {args!r}, accepted is a tuple or list of arguments, as in args=({args!r},)")
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs is {kwargs!r}, accepted is a dict of arguments by their names")


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str = "func") -> bytes:
    """Where we look for modules, code that is in no file (cells of a notebook), function and arguments by cloudpickle.
    `name`: of the argument that the function is.

    Raises TypeError naming what cannot be called, or not be pickled: the function, with the variable that it uses, or
    an argument.
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
    """Where this program looks for modules before it looks among Python's own, and after them.

    The current directory is meant as it is now, also if the function changes it.
    """
    entries = [_resolved(entry) for entry in path if isinstance(entry, str)]
    library = os.path.dirname(os.__file__)
    archive = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    own = (n for n, entry in enumerate(entries) if entry == library or os.path.basename(entry) == archive)
    begin = next(own, 0)
    return entries[:begin], entries[begin:]


def _resolved(entry: str) -> str:
    """Entries that are no place in the file system mean something to an importer of their own."""
    return os.path.abspath(entry) if not entry or os.path.exists(entry) else entry


def _unreachable_module(function: Callable[..., Any]) -> ModuleType | None:
    """The module of the function when workers, who look along our sys.path, cannot import it; it is then pickled as
    __main__ is."""
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
    """What of it cannot be pickled, in words."""
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
    except (TypeError, ValueError):  # not a plain function
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
    """Lines of code by the name under which tracebacks and `inspect.getsource` look for them, the newest first."""
    found: dict[str, list[str]] = {}
    left = CODE_LIMIT
    for name, entry in reversed(list(linecache.cache.items())):
        if len(entry) != 4 or os.path.exists(name):  # len 1: not read yet, so it is in a file
            continue
        lines = entry[2]
        left -= sum(map(len, lines))
        if left < 0:
            break
        found[name] = list(lines)
    return found
