"""check_in_sync for TensorFlow. How: ``horovod.common.in_sync``."""

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from horovod.common import in_sync
from horovod.common.faces import TENSORFLOW as face
from horovod.common.in_sync import fingerprints, variables
from horovod.common.process_sets import ProcessSet, global_process_set


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Raises OutOfSyncError, on all ranks, unless all hold the same, bit for bit; all ranks of the set call it.

    ``objects``, ``named``: Keras models, with which goes the optimizer that they are compiled with, layers, optimizers,
    variables, tensors, arrays, numbers, texts, None, and dicts and lists of these. The error names the first
    difference, as in ``model.weights[3]``, the ranks, and small values; keywords give the names there. Moving
    statistics of batch normalisation differ between ranks and are left out. ``ignore``: more to leave out, paths or
    patterns as in ``["optimizer.*"]``.

    Returns the SHA-256 of what was compared, in hexadecimal. Raises ValueError naming an argument of which nothing
    could be compared; RuntimeError in graphs and tf.functions; HorovodInternalError when a rank is lost.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("check_in_sync works in eager code only, not in graphs and tf.functions")
    read = variables.reader(lambda value: value.numpy() if hasattr(value, "numpy") else value)
    return in_sync.check(
        lambda: fingerprints.table(
            fingerprints.named(objects, named, variables.name_of), read, fingerprints.check_ignore(ignore)
        ),
        process_set,
        face,
    )
