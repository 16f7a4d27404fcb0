"""Names by which programs that are launchers themselves speak with workers of elastic jobs."""

from __future__ import annotations

from dataclasses import dataclass

from horovod.common.contract.host_updates import HostUpdateResult
from horovod.common.elastic.updates import WorkerNotificationManager
from horovod.runner.elastic.notifications import WorkerNotificationClient, WorkerNotificationService

HOROVOD_GLOO_RENDEZVOUS_ADDR = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
HOROVOD_GLOO_RENDEZVOUS_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
HOROVOD_GLOO_IFACE = "HOROVOD_GLOO_IFACE"
HOROVOD_HOSTNAME = "HOROVOD_HOSTNAME"
HOROVOD_LOCAL_RANK = "HOROVOD_LOCAL_RANK"


@dataclass(frozen=True)
class HostsUpdatedRequest:
    """Hosts have changed. `timestamp`: s, larger than that of all news before; `res`: how."""

    timestamp: float
    res: HostUpdateResult = HostUpdateResult.no_update


__all__ = [
    "HOROVOD_GLOO_IFACE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "HOROVOD_HOSTNAME",
    "HOROVOD_LOCAL_RANK",
    "HostUpdateResult",
    "HostsUpdatedRequest",
    "WorkerNotificationClient",
    "WorkerNotificationManager",
    "WorkerNotificationService",
]
