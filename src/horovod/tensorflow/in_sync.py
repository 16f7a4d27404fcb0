"""Comparison of TensorFlow values between ranks, based on ``horovod.common.in_sync``."""

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from horovod.common import in_sync
from horovod.common.frontends import TENSORFLOW as face
from horovod.common.process_sets import ProcessSet, global_process_set


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Check that all ranks hold the same values, bit for bit. All ranks of the set must call it.

    Running statistics of batch normalization differ between ranks and are skipped.

    Args:
        *objects: Keras models (which include the optimizer that they are compiled with), layers, optimizers, variables,
            tensors, arrays, numbers, strings, None, and dicts and lists of these.
        process_set (ProcessSet): Ranks to compare. Default: all ranks.
        ignore (Collection[str]): Further entries to skip, as paths or patterns such as ``["optimizer.*"]``.
        **named: More objects, whose keywords become their names in the error message.

    Returns:
        str: SHA-256 of the compared values, in hexadecimal.

    Raises:
        OutOfSyncError: Values differ. Raised on all ranks; the message names the first difference, as in
            ``model.weights[3]``, the ranks, and small values.
        ValueError: An argument contains nothing that can be compared.
        RuntimeError: Called in a graph or tf.function.
        HorovodInternalError: A rank was lost.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("check_in_sync works in eager code only, not in graphs and tf.functions")
    read = in_sync.reader(lambda value: value.numpy() if hasattr(value, "numpy") else value)
    return in_sync.check(
        lambda: in_sync.fingerprints(
            in_sync.named(objects, named, in_sync.name_of), read, in_sync.check_ignore(ignore)
        ),
        process_set,
        face,
    )
