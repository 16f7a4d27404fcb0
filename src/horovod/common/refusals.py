"""Addition of the rank to error messages of argument checks, which do not always know it."""

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

from horovod.common.job import Access

_F = TypeVar("_F", bound=Callable[..., Any])


def refusing(face: Access) -> Callable[[_F], _F]:
    """Return a decorator that adds this process's rank, if known, to ValueErrors and NotImplementedErrors.

    The error object keeps its type and traceback.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except (ValueError, NotImplementedError) as error:
                add_rank(face, error)
                raise

        return checked  # type: ignore[return-value]

    return decorate


def add_rank(face: Access, error: Exception) -> None:
    """Add the rank to the message of an error that has been caught."""
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (with_rank(face, error.args[0]),)


def with_rank(face: Access, text: str) -> str:
    """Append this process's rank to ``text``, unless it contains the rank or there is none."""
    job = face.job
    return text if job is None or re.search(rf"\brank {job.rank}\b", text) else f"{text} (on rank {job.rank})"


def operation_on_rank(face: Access, operation: str) -> str:
    """Return the beginning of messages: ``allreduce on rank 1``, or ``allreduce`` if there is no rank."""
    return operation if face.job is None else f"{operation} on rank {face.job.rank}"
