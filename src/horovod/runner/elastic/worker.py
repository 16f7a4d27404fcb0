"""API for programs that are themselves launchers to communicate with workers of elastic jobs."""

from __future__ import annotations

from dataclasses import dataclass

from horovod.common.contract.membership import HostUpdateResult
from horovod.common.elastic.updates import WorkerNotificationManager
from horovod.runner.elastic.notifications import WorkerNotificationClient, WorkerNotificationService

HOROVOD_GLOO_RENDEZVOUS_ADDR = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
HOROVOD_GLOO_RENDEZVOUS_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
HOROVOD_GLOO_IFACE = "HOROVOD_GLOO_IFACE"
HOROVOD_HOSTNAME = "HOROVOD_HOSTNAME"
HOROVOD_LOCAL_RANK = "HOROVOD_LOCAL_RANK"


@dataclass(frozen=True)
class HostsUpdatedRequest:
    """Notification that hosts have changed. `timestamp` (s) exceeds all earlier ones; `res` says how."""

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
