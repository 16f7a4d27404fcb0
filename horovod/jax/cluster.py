"""``jax.distributed.initialize()`` in our jobs: JAX learns coordinator, count and number of processes from us.

JAX asks the classes derived from its ``ClusterEnv`` whether they know the environment; ``import horovod.jax`` adds one.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any

from horovod.common.faces import JAX as face
from horovod.jax.functions import broadcast_object
from horovod.jax.process import basics

_held: list[socket.socket] = []  # keeps other programs off the coordinator's port


def register() -> None:
    """Tells JAX of our jobs; once is enough. No effect with a JAX that does not ask."""
    try:
        from jax._src.clusters import ClusterEnv
    except ImportError:
        return

    class HorovodCluster(ClusterEnv):
        """A job of horovodrun, or one that ``hvd.init()`` has formed."""

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

    # JAX takes the first that knows the environment; a launcher's allocation that we run in is not the job.
    known = getattr(ClusterEnv, "_cluster_types", [])
    if HorovodCluster in known:
        known.remove(HorovodCluster)
        known.insert(0, HorovodCluster)


def local_device(environment: Mapping[str, str]) -> int | None:
    """Which of the accelerators that this process sees is its own; None: all of them, because somebody has given each
    process its own."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    given = environment.get("HOROVOD_GPUS_PER_WORKER", "0") not in ("", "0")
    if given or (visible is not None and len(visible.split(",")) < basics.local_size()):
        return None
    return basics.local_rank()


def coordinator(port: str | None = None) -> str:
    """ "host:port" at which this rank reaches JAX's coordinator, which listens on all addresses of rank 0; all ranks
    call it. ``port``: to be used if given. Initialises Horovod where that has not been done.

    The port is the same for all; the host is what leads there from here, since rank 0 may be in several networks."""
    basics.init()
    own = (port or str(_free_port())) if basics.rank() == 0 else None
    number = broadcast_object(own, 0, name="jax.coordinator")
    host = face.require_job().first_address or "127.0.0.1"
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def _free_port() -> int:
    """One that stays ours: the coordinator, which sets SO_REUSEPORT as we do, can bind it, other users cannot."""
    held = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("", 0))
    _held.append(held)
    return int(held.getsockname()[1])
