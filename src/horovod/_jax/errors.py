"""Conversion of JAX's errors to Horovod's errors when a collective in a compiled program fails.

JAX raises one of two exception types for the same failure, depending on how it called the program.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError

# All messages of errors with Code::mismatch contain this text.
_DISAGREE = "ranks disagree about"
# Messages of bindings/jax begin with this text, after the status that XLA adds.
_MARK = "horovod: "


@contextlib.contextmanager
def as_ours() -> Iterator[None]:
    """Return a context that converts JAX errors of failed collectives to HorovodInternalError.

    All other errors are raised unchanged.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        _, mark, text = str(error).partition(_MARK)
        if not mark or isinstance(error, HorovodInternalError):
            raise
        raise (RanksDisagreeError if _DISAGREE in text else HorovodInternalError)(text) from error


def errors_as_ours(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``func`` to convert JAX errors of failed collectives to HorovodInternalError."""

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Any:
        with as_ours():
            return func(*args, **kwargs)

    return translated
