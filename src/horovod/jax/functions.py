"""Broadcast of pytrees and Python objects from a root rank, and comparison of values between ranks."""

from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from jax import tree_util

from horovod.common import in_sync, objects
from horovod.common.frontends import JAX as face
from horovod.common.job import refusing
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.uneven import make_sync
from horovod.jax.arrays import flat, full_names
from horovod.jax.collectives import broadcast_leaves


@refusing(face)
def broadcast_parameters(
    params: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Broadcast the arrays of a pytree from the root rank.

    The result is a pytree like ``params`` with the root's arrays, including random keys. All arrays are sent in one
    operation. Leaves that are neither arrays nor numbers, such as functions, stay unchanged.

    Args:
        params (pytree): Parameters, an optimizer state, a model of Equinox, a state of Flax NNX, or any other pytree,
            with the same structure on all ranks.
        root_rank (int): World rank of the root. Default: 0.
        name (str, optional): Prefix of the operations' names; required if several threads broadcast at the same time.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        pytree: The root's values.

    Raises:
        ValueError: A leaf cannot be sent. The message names it.
        HorovodInternalError: Ranks disagree, or a rank was lost.
    """
    leaves, structure = tree_util.tree_flatten(params)
    keys = {i: leaf for i, leaf in enumerate(leaves) if _is_key(leaf)}
    plain = [jax.random.key_data(leaf) if i in keys else leaf for i, leaf in enumerate(leaves)]
    chosen = [i for i, leaf in enumerate(plain) if hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float)]
    arrays, places, _ = flat([plain[i] for i in chosen])
    names = full_names("broadcast", name or "parameters", places)
    for i, value in zip(chosen, broadcast_leaves(arrays, names, root_rank, process_set), strict=True):
        leaves[i] = jax.random.wrap_key_data(value, impl=jax.random.key_impl(keys[i])) if i in keys else value
    return structure.unflatten(leaves)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@refusing(face)
def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Broadcast a Python object from the root to all ranks of the process set.

    Args:
        obj (Any): Picklable object to send. Ignored on the other ranks, which can pass None.
        root_rank (int): World rank of the root. Default: 0.
        name (str, optional): Name prefix of the operations.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Any: The root's object.

    Raises:
        HorovodInternalError: Ranks disagree, or a rank was lost.
    """
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, face)


@refusing(face)
def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Gather Python objects from all ranks of the process set.

    Args:
        obj (Any): This rank's object, which must be picklable. Types can differ between ranks.
        name (str, optional): Name that identifies the operation on all ranks.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[Any]: Objects in the order of ranks within the process set.

    Raises:
        HorovodInternalError: Ranks disagree, or a rank was lost.
    """
    return objects.allgather_object(obj, name or "allgather_object", process_set, face)


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Check that all ranks hold the same values, bit for bit.

    All ranks of the process set must call this.

    Args:
        *objects: Pytrees of arrays, numbers, strings and None, and other objects with such attributes.
        process_set (ProcessSet): Ranks to compare. Default: all ranks.
        ignore (Collection[str]): Entries to skip, as paths or patterns such as ``["opt_state.*"]``.
        **named: More objects. Their keywords are used as names in the error message.

    Returns:
        str: SHA-256 of the compared values, in hexadecimal.

    Raises:
        OutOfSyncError: Values differ. Raised on all ranks. The message names the first difference, such as
            ``params['w']``, and the ranks, and shows the values if they are small.
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


sync = make_sync(face, policies=("stop", "pad"))
