"""What `horovod.run` raises when a process of its job fails."""

from __future__ import annotations

import builtins
import types
from typing import Any


class WorkerError(RuntimeError):
    """A process of the job failed; the message names the first one, how it ended and, for an exception, its traceback.

    Where that process raised an exception, what `horovod.run` raises is an instance of the exception's class too, so
    `except ValueError` catches a ValueError of a worker, with `args` and its other attributes as they were there.

    rank: of the process that failed first; None when it was no process of the job's (an agent, the launcher).
    host: its host, empty without a rank.
    exit_code: its exit code, 128 + n for signal n.
    remote_traceback: its traceback as text, empty when there was no exception.
    cause: the exception itself, also `__cause__`; None when there was none or it could not be pickled.
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
    """A WorkerError, of the class of `cause` as well where two classes can be joined."""
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


# Python itself treats these in its own way: it prints other things than the message, or ends loops and generators.
_APART: tuple[type[BaseException], ...] = (SyntaxError, StopIteration, StopAsyncIteration)
if hasattr(builtins, "BaseExceptionGroup"):  # since Python 3.11
    _APART = (*_APART, builtins.BaseExceptionGroup)


def _of_both_classes(cause: BaseException) -> WorkerError | None:
    kind = type(cause)
    if not isinstance(cause, Exception) or isinstance(cause, (WorkerError, *_APART)) or issubclass(WorkerError, kind):
        return None
    try:  # classes of others may forbid to be joined or made in all sorts of ways
        joined = type(f"WorkerError({kind.__name__})", (WorkerError, kind), _native_attributes(kind))
        error: WorkerError = kind.__new__(joined, *cause.args)
        error.args = cause.args
        error.__dict__.update(cause.__dict__)
        return error
    except Exception:
        return None


def _native_attributes(kind: type[BaseException]) -> dict[str, Any]:
    """Attributes that are kept outside of `__dict__`, as OSError.errno is, read from the cause."""
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
