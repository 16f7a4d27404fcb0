"""Bringing every rank to the root's state: pytrees of arrays, and any Python object."""

from typing import Any

import jax
from jax import tree_util

from horovod.common import objects
from horovod.common.faces import JAX as face
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.refusals import refusing
from horovod.jax.arrays import flat, full_names
from horovod.jax.collectives import broadcast_leaves


@refusing(face)
def broadcast_parameters(
    params: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """A pytree like ``params`` with the arrays of ``root_rank`` (world rank), in one go.

    ``params``: parameters, an optimizer's state, a model of Equinox, a state of Flax NNX: any pytree, of the same
    structure on all ranks. Keys of random numbers are taken along; leaves that are neither arrays nor numbers
    (functions, say) stay what they are. ``name``: of the operations; where several threads broadcast at a time.

    Raises ValueError naming what cannot travel, HorovodInternalError when ranks differ or one is lost.
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
    """Returns the root's ``obj`` on every rank of the set; the others may pass anything, None for example. See
    ``horovod.common.objects``."""
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, face)


@refusing(face)
def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks of the set, by rank within it. Types may differ between ranks."""
    return objects.allgather_object(obj, name or "allgather_object", process_set, face)
