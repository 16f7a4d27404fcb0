"""Process functions of the JAX frontend, such as init and rank, and support for ``jax.distributed``.

``import horovod.jax`` registers a subclass of JAX's ``ClusterEnv``. The subclass provides the coordinator's address,
the number of processes and the index of this process to ``jax.distributed.initialize()``.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any

from horovod.common import frontends
from horovod.common.basics import HorovodBasics
from horovod.common.frontends import JAX as face
from horovod.jax.functions import broadcast_object

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
_held: list[socket.socket] = []


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
    host = face.require_job().first_address or "127.0.0.1"
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def _free_port() -> int:
    """Reserve a free port for later use by a program of this user, and return its number.

    The reserving socket stays open. It sets SO_REUSEPORT, as the coordinator's socket does, so the coordinator can bind
    the same port.
    """
    held = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("", 0))
    _held.append(held)
    return int(held.getsockname()[1])
