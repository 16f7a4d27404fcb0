"""Small TensorFlow helpers, some of which third-party code imports."""

import functools
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from horovod.common.contract.settings import BY_NAME
from horovod.common.exceptions import HorovodInternalError


def _executing_eagerly() -> bool:
    """Return True in eager mode, and False in a tf.function or a session graph."""
    return tf.executing_eagerly()


def vars_to_refs(vars: Any) -> Any:
    """Convert nested lists of variables to nested tuples of hashable references.

    Args:
        vars (tf.Variable or nested list): Variables.

    Returns:
        References in the same structure.
    """
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Convert references from ``vars_to_refs`` back to variables, and tuples back to lists.

    Args:
        refs (reference or nested tuple): References.

    Returns:
        Variables in the same structure.
    """
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(reference) for reference in refs]
    return refs.deref()


def elastic() -> bool:
    """Return True in an elastic job (HOROVOD_ELASTIC=1).

    The size of an elastic job can change while functions that were traced earlier are still in use.
    """
    return bool(BY_NAME["HOROVOD_ELASTIC"].parse(os.environ.get("HOROVOD_ELASTIC", "")))


# -- the error for a lost rank ---------------------------------------------------------------------------------------

_PREFIX = "Horovod"  # Part of all Horovod op names. TensorFlow's error message for a failed op contains the op's name.


def convert_errors(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``func`` to raise HorovodInternalError if a Horovod op fails with UnknownError.

    Horovod ops fail with UnknownError after a rank is lost and during a shutdown. All other errors are raised
    unchanged.

    Returns:
        The decorated function.
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except tf.errors.UnknownError as error:
            if _PREFIX not in str(error):
                raise
            raise HorovodInternalError(str(error)) from error

    return translated
