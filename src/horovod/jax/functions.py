"""Process functions, such as init and rank, broadcast of pytrees and objects, and ``jax.distributed``.

``import horovod.jax`` registers a subclass of JAX's ``ClusterEnv``. The subclass provides the coordinator's address,
the number of processes and the index of this process to ``jax.distributed.initialize()``.
"""

import os
import socket
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np
from jax import tree_util

from horovod.common import frontends, in_sync, objects
from horovod.common.basics import HorovodBasics
from horovod.common.frontends import JAX as frontend
from horovod.common.frontends import refusing
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.uneven import make_sync
from horovod.jax.arrays import flat, full_names
from horovod.jax.collectives import broadcast_leaves


@refusing(frontend)
def broadcast_parameters(
    params: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Broadcast the arrays of a pytree from the root rank.

    The result has the structure of ``params`` and the root's arrays, including random keys. All arrays are sent in one
    operation. Leaves that are neither arrays nor numbers, such as functions, are left unchanged.

    Args:
        params (pytree): Parameters, an optimizer state, a model of Equinox, a state of Flax NNX, or any other pytree,
            with the same structure on all ranks.
        root_rank (int): World rank of the root. Default: 0.
        name (str, optional): Prefix of the operations' names; required if several threads broadcast at the same time.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        pytree: The root's values.

    Raises:
        ValueError: If a leaf cannot be sent. The message names it.
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
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


@refusing(frontend)
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
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
    """
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, frontend)


@refusing(frontend)
def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Gather Python objects from all ranks of the process set.

    Args:
        obj (Any): This rank's object, which must be picklable. Types can differ between ranks.
        name (str, optional): Name that identifies the operation on all ranks.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[Any]: Objects in the order of ranks within the process set.

    Raises:
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
    """
    return objects.allgather_object(obj, name or "allgather_object", process_set, frontend)


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Check that all ranks hold the same values, bit for bit.

    All ranks of the process set must call this.

    Args:
        *objects: Pytrees of arrays, numbers, strings and None, and other objects whose attributes have such types.
        process_set (ProcessSet): Ranks to compare. Default: all ranks.
        ignore (Collection[str]): Entries to skip, as paths or patterns such as ``["opt_state.*"]``.
        **named: More objects. Their keywords are used as names in the error message.

    Returns:
        str: SHA-256 of the compared values, in hexadecimal.

    Raises:
        OutOfSyncError: If values differ. Raised on all ranks. The message names the first difference, such as
            ``params['w']``, and the ranks, and shows the values if they are small.
        ValueError: If an argument contains nothing that can be compared.
        HorovodInternalError: If a rank was lost.
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
        frontend,
    )


sync = make_sync(frontend, policies=("stop", "pad"))


__all__ = [*frontends.PROCESS_NAMES]

basics = HorovodBasics("jax")

init = basics.init
shutdown = basics.shutdown
is_initialized = basics.is_initialized
rank = basics.rank
size = basics.size
local_rank = basics.local_rank
local_size = basics.local_size
cross_rank = basics.cross_rank
cross_size = basics.cross_size
is_homogeneous = basics.is_homogeneous
max_size = basics.max_size
should_stop = basics.should_stop
mpi_threads_supported = basics.mpi_threads_supported
mpi_enabled = basics.mpi_enabled
mpi_built = basics.mpi_built
gloo_enabled = basics.gloo_enabled
gloo_built = basics.gloo_built
nccl_built = basics.nccl_built
ddl_built = basics.ddl_built
ccl_built = basics.ccl_built
cuda_built = basics.cuda_built
rocm_built = basics.rocm_built
start_timeline = basics.start_timeline
stop_timeline = basics.stop_timeline
dump = basics.dump
step = basics.step
stats = basics.stats
report = basics.report
log_stats = basics.log_stats


# Open socket that keeps the coordinator's port reserved.
_retained: list[socket.socket] = []


def register_cluster() -> None:
    """Register Horovod jobs with ``jax.distributed``, if this version of JAX supports it."""
    try:
        from jax._src.clusters import ClusterEnv
    except ImportError:
        return

    class HorovodCluster(ClusterEnv):
        """Cluster environment for jobs started by horovodrun or initialized with ``hvd.init()``."""

        name = "horovod"

        @classmethod
        def is_env_present(cls) -> bool:
            return basics.is_initialized() or "HOROVOD_RANK" in os.environ

        @classmethod
        def get_coordinator_address(cls, *args: Any, **kwargs: Any) -> str:
            return coordinator(kwargs.get("override_coordinator_port"))

        @classmethod
        def get_process_count(cls) -> int:
            return basics.size()

        @classmethod
        def get_process_id(cls) -> int:
            return basics.rank()

        @classmethod
        def get_local_process_id(cls) -> int | None:
            return local_device(os.environ)

    # JAX uses the first class that recognizes its environment. Insert this class first, so that a Horovod job takes
    # precedence over the allocation of a scheduler such as Slurm.
    known = getattr(ClusterEnv, "_cluster_types", [])
    if HorovodCluster in known:
        known.remove(HorovodCluster)
        known.insert(0, HorovodCluster)


def local_device(environment: Mapping[str, str]) -> int | None:
    """Return the index of the visible accelerator that this process should use.

    Return None if the process should use all visible accelerators, because the launcher has assigned them to it.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    given = environment.get("HOROVOD_GPUS_PER_WORKER", "0") not in ("", "0")
    if given or (visible is not None and len(visible.split(",")) < basics.local_size()):
        return None
    return basics.local_rank()


def coordinator(port: str | None = None) -> str:
    """Return the "host:port" address at which this rank can reach JAX's coordinator.

    The coordinator runs on rank 0. All ranks must call this function. The coordinator uses ``port`` if it is not None.
    The port is the same on all ranks, but the host can differ, because rank 0 can be in several networks. The function
    initializes Horovod if necessary.
    """
    basics.init()
    own = (port or str(_free_port())) if basics.rank() == 0 else None
    number = broadcast_object(own, 0, name="jax.coordinator")
    host = frontend.require_job().first_address or "127.0.0.1"
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def _free_port() -> int:
    """Reserve a free port for later use by a program of this user.

    The reserving socket stays open. It sets SO_REUSEPORT, as the coordinator's socket does, so the coordinator can bind
    the same port.

    Returns:
        Number of the port.
    """
    held = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("", 0))
    _retained.append(held)
    return int(held.getsockname()[1])
