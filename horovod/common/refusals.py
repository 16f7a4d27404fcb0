"""Refusals that name the rank, for the faces: their checks know argument and value, but not always whose they are."""

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

from horovod.common.job import Access

_F = TypeVar("_F", bound=Callable[..., Any])


def refusing(face: Access) -> Callable[[_F], _F]:
    """Decorates what a user calls: a ValueError or NotImplementedError that it raises names this process's rank, once
    there is one. The error stays the one that was raised, with its type and traceback."""

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
    """The same for an error that has been caught."""
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (with_rank(face, error.args[0]),)


def with_rank(face: Access, text: str) -> str:
    """``text`` with this process's rank at its end, unless it is in it already or there is none."""
    job = face.job
    return text if job is None or re.search(rf"\brank {job.rank}\b", text) else f"{text} (on rank {job.rank})"


def said(face: Access, operation: str) -> str:
    """What messages begin with: ``allreduce on rank 1``, and ``allreduce`` where there is no rank."""
    return operation if face.job is None else f"{operation} on rank {face.job.rank}"
