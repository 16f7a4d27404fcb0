"""Translation of TensorFlow's error for a lost rank to Horovod's."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from horovod.common.exceptions import HorovodInternalError

_OURS = "Horovod"  # part of Horovod's op names, and so of TensorFlow's message about a failed op


def errors_as_ours(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``func`` to raise HorovodInternalError if a Horovod op fails with UnknownError.

    A lost rank or a shutdown causes that error. All other errors are raised unchanged.
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except tf.errors.UnknownError as error:
            if _OURS not in str(error):
                raise
            raise HorovodInternalError(str(error)) from error

    return translated
