"""Conversion of JAX errors to Horovod's errors, for collectives that fail in a compiled program.

JAX raises one of two types for the same error, depending on how it called the program.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError

# Text that all messages with the status Code::mismatch contain.
_DISAGREE = "ranks disagree about"
# Text with which messages of bindings/jax begin, after the status that XLA puts in front.
_MARK = "horovod: "


@contextlib.contextmanager
def as_ours() -> Iterator[None]:
    """Return a context that converts errors of Horovod's foreign function to HorovodInternalError or a subclass.

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
    """Decorate ``func`` so that its errors are converted as in ``as_ours``."""

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Any:
        with as_ours():
            return func(*args, **kwargs)

    return translated
