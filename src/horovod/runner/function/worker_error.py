"""Results of a `horovod.run` job by rank, or the error that it raises."""

from __future__ import annotations

import builtins
import contextlib
import textwrap
import types
from collections.abc import Mapping
from typing import Any

from horovod.runner.attribution import tracebacks
from horovod.runner.base.errors import OutcomeError
from horovod.runner.base.job_result import JobResult
from horovod.runner.function import outcome


class WorkerError(RuntimeError):
    """Error of `horovod.run` if a process of the job fails.

    The message contains the rank that failed first and how it ended, with the traceback of an exception. In this case,
    the error is also an instance of the exception's class. For example, `except ValueError` catches a ValueError of a
    worker, with its `args` and other attributes.

    Attributes:
        rank: Rank of the process that failed first, or None if an agent or the launcher failed.
        host: Host of this rank. Empty if `rank` is None.
        exit_code: Exit code of the process, or 128 + n for signal n.
        remote_traceback: Traceback in this process. Empty if it raised no exception.
        cause: Original exception, which is also `__cause__`. None if there was none or it could not be pickled.
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


# Python treats these classes specially. It omits their messages, or uses them to end loops and generators.
_APART: tuple[type[BaseException], ...] = (SyntaxError, StopIteration, StopAsyncIteration)
if hasattr(builtins, "BaseExceptionGroup"):  # Python 3.11 and newer
    _APART = (*_APART, builtins.BaseExceptionGroup)


def _of_both_classes(cause: BaseException) -> WorkerError | None:
    kind = type(cause)
    if not isinstance(cause, Exception) or isinstance(cause, (WorkerError, *_APART)) or issubclass(WorkerError, kind):
        return None
    try:  # The class of `cause` can raise any exception if it cannot be combined or constructed.
        joined = type(f"WorkerError({kind.__name__})", (WorkerError, kind), _native_attributes(kind))
        error: WorkerError = kind.__new__(joined, *cause.args)
        error.args = cause.args
        error.__dict__.update(cause.__dict__)
        return error
    except Exception:
        return None


def _native_attributes(kind: type[BaseException]) -> dict[str, Any]:
    """Return properties that read attributes of `cause` outside of its `__dict__`, such as OSError.errno."""
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
    """Return the values of the last epoch's ranks below `least`. Raises WorkerError if the job has failed."""
    return by_rank(result, dict(sorted(result.hosts.items())[:least]))


def by_rank(result: JobResult, hosts: Mapping[int, str]) -> list[Any]:
    """Return the values of all ranks in `hosts`, which maps ranks to hosts.

    Raises WorkerError if the job has failed.
    """
    described = {rank: outcome.describe(data) for rank, data in result.results.items()}
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
                with contextlib.suppress(OutcomeError):  # Ignore the error, because the message contains the traceback.
                    cause = outcome.load(result.results[rank], description, rank)
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
        if description is None:  # The function might have called sys.exit(0) or os._exit(0).
            text = f"rank {rank} on host {host} ended with exit code 0 without a result"
            raise worker_error(text, rank, host, 0)
        try:
            values.append(outcome.load(result.results.pop(rank), description, rank))
        except OutcomeError as error:
            raise worker_error(str(error), rank, host, 0, cause=error) from error
    return values
