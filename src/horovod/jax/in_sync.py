"""Comparison of JAX values between ranks, based on ``horovod.common.in_sync``."""

from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from horovod.common import in_sync
from horovod.common.faces import JAX as face
from horovod.common.process_sets import ProcessSet, global_process_set


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Check that all ranks hold the same values, bit for bit. All ranks of the set must call it.

    Args:
        *objects: Pytrees of arrays, numbers, strings and None, and other objects with such attributes.
        process_set (ProcessSet): Ranks to compare. Default: all ranks.
        ignore (Collection[str]): Entries to skip, as paths or patterns such as ``["opt_state.*"]``.
        **named: More objects, whose keywords become their names in the error message.

    Returns:
        str: SHA-256 of the compared values, in hexadecimal.

    Raises:
        OutOfSyncError: Values differ. Raised on all ranks; the message names the first difference, as in
            ``params['w']``, the ranks, and small values.
        ValueError: An argument contains nothing that can be compared.
        HorovodInternalError: A rank was lost.
    """

    def to_numpy(value: Any) -> Any:
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        return np.asarray(value)

    read = in_sync.reader(to_numpy)
    return in_sync.check(
        lambda: in_sync.fingerprints(
            in_sync.named(objects, named, in_sync.name_of), read, in_sync.check_ignore(ignore)
        ),
        process_set,
        face,
    )
