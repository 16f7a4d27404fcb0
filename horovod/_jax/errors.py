"""JAX's errors for a collective that has failed within a compiled program, as ours.

JAX has two types for one error, depending on how it called the program.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError

_DISAGREE = "ranks disagree about"  # in all messages of Code::mismatch
_MARK = "horovod: "  # begins the messages of bindings/jax, after XLA's own status


@contextlib.contextmanager
def as_ours() -> Iterator[None]:
    """Errors of our foreign function leave it as HorovodInternalError, or a subclass, all others as they are."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        _, mark, text = str(error).partition(_MARK)
        if not mark or isinstance(error, HorovodInternalError):
            raise
        raise (RanksDisagreeError if _DISAGREE in text else HorovodInternalError)(text) from error


def errors_as_ours(func: Callable[..., Any]) -> Callable[..., Any]:
    """``func``, with its errors ``as_ours``."""

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Any:
        with as_ours():
            return func(*args, **kwargs)

    return translated
