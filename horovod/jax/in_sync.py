"""check_in_sync for JAX. How: ``horovod.common.in_sync``."""

from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from horovod.common import in_sync
from horovod.common.faces import JAX as face
from horovod.common.in_sync import fingerprints, variables
from horovod.common.process_sets import ProcessSet, global_process_set


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Raises OutOfSyncError, on all ranks, unless all hold the same, bit for bit; all ranks of the set call it.

    ``objects``, ``named``: pytrees of arrays, numbers, texts, None, and other objects with such attributes. The error
    names the first difference, as in ``params['w']``, the ranks, and small values; keywords give the names there.
    ``ignore``: paths to leave out, or patterns as in ``["opt_state.*"]``.

    Returns the SHA-256 of what was compared, in hexadecimal. Raises ValueError naming an argument of which nothing
    could be compared; HorovodInternalError when a rank is lost.
    """

    def to_numpy(value: Any) -> Any:
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        return np.asarray(value)

    read = variables.reader(to_numpy)
    return in_sync.check(
        lambda: fingerprints.table(
            fingerprints.named(objects, named, variables.name_of), read, fingerprints.check_ignore(ignore)
        ),
        process_set,
        face,
    )
