"""TensorFlow's word for a lost peer, as ours."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from horovod.common.exceptions import HorovodInternalError

_OURS = "Horovod"  # in the names of our ops, and so in what TensorFlow says of one that has failed


def errors_as_ours(func: Callable[..., Any]) -> Callable[..., Any]:
    """``func``, raising HorovodInternalError where one of our ops has failed with UnknownError, which is what a lost
    peer and a shutdown do to it. All other errors pass."""

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except tf.errors.UnknownError as error:
            if _OURS not in str(error):
                raise
            raise HorovodInternalError(str(error)) from error

    return translated
