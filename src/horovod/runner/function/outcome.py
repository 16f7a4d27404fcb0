"""Function and arguments of `horovod.run`, serialized for the workers, and its results.

Each worker writes a file that contains the function's pickled result or the exception that ended the worker, followed
by a description. If the description is missing or incomplete, the worker was killed.

    pickled value or exception | description (msgpack) | length of the description (4 bytes, big-endian)
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib.machinery
import inspect
import linecache
import os
import pickle
import struct
import sys
import textwrap
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

import cloudpickle
import msgspec

from horovod.common.contract import pickling
from horovod.common.contract.pickling import dumps
from horovod.runner.attribution import tracebacks
from horovod.runner.base.job_result import JobResult, OutcomeError

TRACEBACK_LIMIT = 1 << 16  # Maximum length of a traceback in characters; the middle of a longer one is dropped.
_LENGTH = struct.Struct(">I")
_BUFFER = 1 << 20


class Description(msgspec.Struct, frozen=True):
    """Trailer of a result file, which describes its contents.

    Attributes:
        kind: Kind of the contents: a value or an exception.
        type_name: Type of the value or exception.
        body: Size of the pickle at the start of the file in bytes, or 0 if there is none.
        traceback: Traceback of the exception.
        why: Reason why there is no pickle.
    """

    kind: Literal["value", "exception"]
    type_name: str
    body: int
    traceback: str = ""
    why: str = ""


def write_value(fd: int, value: object, rank: int) -> None:
    """Write the function's result to the file. Raises OutcomeError if it cannot be pickled or is too large."""
    try:
        _write(fd, value, lambda body: Description("value", type_name(value), body))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise OutcomeError(
            f"the result of rank {rank}, of type {type_name(value)}, cannot be sent back: {reason}"
        ) from error


def write_exception(fd: int, error: BaseException, text: str) -> None:
    """Write an exception and its traceback to the file.

    If the exception cannot be pickled, write only the traceback.
    """
    name = type_name(error)
    try:
        # Also test unpickling, because it fails for many exceptions that can be pickled.
        pickle.loads(pickling.dumps(error))
        _write(fd, error, lambda body: Description("exception", name, body, text))
    except Exception as trouble:
        why = f"{type(trouble).__name__}: {trouble}"
        _write(fd, None, lambda _: Description("exception", name, 0, text, why))


def _write(fd: int, value: object, describe: Any) -> None:
    """Pickle the value directly into the file, because there might not be enough memory for a second copy."""
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "wb", buffering=_BUFFER, closefd=False) as file:
        pickling.dump(value, file)
        description = msgspec.msgpack.encode(describe(file.tell()))
        file.write(description)
        file.write(_LENGTH.pack(len(description)))


def describe(data: bytes | bytearray) -> Description | None:
    """Return the description of the outcome at the end of the file.

    The result is None if the worker exited before writing it.
    """
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(view[-_LENGTH.size :])
    if len(view) < length + _LENGTH.size:
        return None
    try:
        return msgspec.msgpack.decode(view[-_LENGTH.size - length : -_LENGTH.size], type=Description)
    except msgspec.MsgspecError:
        return None


def load(data: bytes | bytearray, description: Description, rank: int) -> Any:
    """Return the value or exception from the file. Raises OutcomeError if it cannot be unpickled."""
    try:
        return pickle.loads(memoryview(data)[: description.body])
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        what = "result" if description.kind == "value" else "exception"
        raise OutcomeError(
            f"the {what} of rank {rank}, of type {description.type_name}, cannot be unpickled here: {reason}"
        ) from error


def type_name(value: object) -> str:
    """Return the name of the value's type, qualified with its module unless it is a builtin type."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def format_traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it, cut to TRACEBACK_LIMIT characters."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if len(text) > TRACEBACK_LIMIT:
        half = TRACEBACK_LIMIT // 2
        text = f"{text[:half]}\n    ... ({len(text) - 2 * half} characters left out)\n{text[-half:]}"
    return text


class WorkerError(RuntimeError):
    """Error that `horovod.run` raises if a process of the job fails.

    The message contains the rank that failed first and how it ended. If this rank raised an exception, the message also
    contains the traceback, and the error is also an instance of the exception's class. For example, `except ValueError`
    catches a ValueError of a worker, with its `args` and other attributes.

    Attributes:
        rank: Rank of the process that failed first, or None if an agent or the launcher failed.
        host: Host of this rank, or an empty string if `rank` is None.
        exit_code: Exit code of the process, or 128 + n for signal n.
        remote_traceback: Traceback in this process, or an empty string if it raised no exception.
        cause: Original exception, which is also `__cause__`, or None if there was none or it could not be pickled.
    """

    rank: int | None = None
    host: str = ""
    exit_code: int = 1
    remote_traceback: str = ""
    cause: BaseException | None = None
    _message: str = ""

    def __str__(self) -> str:
        return self._message

    def __reduce__(self) -> tuple[Any, ...]:
        return worker_error, (
            self._message,
            self.rank,
            self.host,
            self.exit_code,
            self.remote_traceback,
            self.cause,
        )


def worker_error(
    message: str,
    rank: int | None = None,
    host: str = "",
    exit_code: int = 1,
    remote_traceback: str = "",
    cause: BaseException | None = None,
) -> WorkerError:
    """Create a WorkerError that is also an instance of the class of `cause`, if both classes can be combined."""
    error = _of_both_classes(cause) if cause is not None else None
    if error is None:
        error = WorkerError(message)
    error._message = message
    error.rank = rank
    error.host = host
    error.exit_code = exit_code
    error.remote_traceback = remote_traceback
    error.cause = error.__cause__ = cause
    return error


# WorkerError must not inherit from these exceptions: StopIteration, for example, would end a loop silently.
_ALONE: tuple[type[BaseException], ...] = (SyntaxError, StopIteration, StopAsyncIteration)
if hasattr(builtins, "BaseExceptionGroup"):  # Exception groups exist only in Python 3.11 and newer.
    _ALONE = (*_ALONE, builtins.BaseExceptionGroup)


def _of_both_classes(cause: BaseException) -> WorkerError | None:
    kind = type(cause)
    if not isinstance(cause, Exception) or isinstance(cause, (WorkerError, *_ALONE)) or issubclass(WorkerError, kind):
        return None
    # Catch all exceptions, because combining or constructing the class of `cause` can raise any exception.
    try:
        joined = type(f"WorkerError({kind.__name__})", (WorkerError, kind), _native_attributes(kind))
        error: WorkerError = kind.__new__(joined, *cause.args)
        error.args = cause.args
        error.__dict__.update(cause.__dict__)
        return error
    except Exception:
        return None


def _native_attributes(kind: type[BaseException]) -> dict[str, Any]:
    """Return properties for those attributes of `cause` that are not in its `__dict__`, such as OSError.errno."""
    found: dict[str, Any] = {"__module__": WorkerError.__module__}
    for base in kind.__mro__:
        if base in (BaseException, Exception):
            break
        for name, value in vars(base).items():
            native = isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))
            if native and not name.startswith("__"):
                found.setdefault(name, _from_cause(name))
    return found


def _from_cause(name: str) -> property:
    return property(lambda error: getattr(error.cause, name))


def of_elastic(result: JobResult, least: int) -> list[Any]:
    """Return the results of ranks 0 to `least` - 1 of the last epoch.

    Raises WorkerError if the job has failed.
    """
    return by_rank(result, dict(sorted(result.hosts.items())[:least]))


def by_rank(result: JobResult, hosts: Mapping[int, str]) -> list[Any]:
    """Return the function results of all ranks in `hosts`, which maps ranks to hosts.

    Raises:
        WorkerError: If the job has failed.
    """  # noqa: DOC501
    described = {rank: describe(data) for rank, data in result.results.items()}
    if result.exit_code != 0:
        rank = result.failed_rank
        text, cause = "", None
        message = result.message
        description = described.get(rank) if rank is not None else None
        if rank is not None and description is not None and description.kind == "exception":
            text = description.traceback
            shown = textwrap.indent("\n".join(tracebacks.shortened(text.rstrip().splitlines())), "    ")
            message = f"{result.headline or result.message}\nthe exception of rank {rank}:\n{shown}"
            if description.why:
                lost = f"{description.type_name} cannot be pickled and unpickled: {description.why}"
                message += f"\n(this error is not of its class: {lost})"
            if description.body:
                # If the exception cannot be unpickled, omit it. The message already contains its traceback.
                with contextlib.suppress(OutcomeError):
                    cause = load(result.results[rank], description, rank)
        raise worker_error(
            message,
            rank,
            {**result.hosts, **hosts}.get(rank, "") if rank is not None else "",
            result.exit_code,
            text,
            cause,
        )
    values = []
    for rank, host in sorted(hosts.items()):
        description = described.get(rank)
        if description is None:  # A result is missing if the function called sys.exit(0) or os._exit(0).
            text = f"rank {rank} on host {host} ended with exit code 0 without a result"
            raise worker_error(text, rank, host, 0)
        try:
            values.append(load(result.results.pop(rank), description, rank))
        except OutcomeError as error:
            raise worker_error(str(error), rank, host, 0, cause=error) from error
    return values


CODE_LIMIT = 4 << 20  # Maximum number of characters of notebook code that are sent to the workers, for their tracebacks


def check(function: Any, args: Any, kwargs: Any, name: str = "func") -> None:
    """Check that the function can be called with these arguments.

    `name` is the function's name in the message.

    Raises:
        TypeError: If it cannot.
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
        TypeError: If the function cannot be called with these arguments, or cannot be pickled. The message names the
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
    """Return the function's module if workers cannot import it, so that it must be pickled by value."""
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
