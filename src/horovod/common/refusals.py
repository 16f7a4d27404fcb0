"""Helpers that add this process's rank to error messages of argument checks."""

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

from horovod.common.job import Access

_F = TypeVar("_F", bound=Callable[..., Any])


def refusing(face: Access) -> Callable[[_F], _F]:
    """Return a decorator that adds this process's rank, if known, to each ValueError and NotImplementedError.

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
    """Add this process's rank to the message of an error that was caught."""
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (with_rank(face, error.args[0]),)


def with_rank(face: Access, text: str) -> str:
    """Append this process's rank to ``text``, unless the text names it already or the rank is unknown."""
    job = face.job
    return text if job is None or re.search(rf"\brank {job.rank}\b", text) else f"{text} (on rank {job.rank})"


def operation_on_rank(face: Access, operation: str) -> str:
    """Return the prefix of messages: ``allreduce on rank 1``, or ``allreduce`` if the rank is unknown."""
    return operation if face.job is None else f"{operation} on rank {face.job.rank}"
