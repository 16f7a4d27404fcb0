"""Classes of a data service's registry; implemented in `horovod.common.compute`.

The requests and responses are documented names that programs may import. They are not sent: the service uses the
protocol of a job's store, and clients call the methods of `ComputeClient`.
"""

from dataclasses import dataclass

from horovod.common.compute import ComputeClient, ComputeService

__all__ = [
    "ComputeClient",
    "ComputeService",
    "RegisterDispatcherRequest",
    "RegisterDispatcherWorkerRequest",
    "ShutdownRequest",
    "WaitForDispatcherRegistrationRequest",
    "WaitForDispatcherRegistrationResponse",
    "WaitForDispatcherWorkerRegistrationRequest",
    "WaitForShutdownRequest",
]


@dataclass
class RegisterDispatcherRequest:
    """Registration of a dispatcher at HOST:PORT."""

    dispatcher_id: int
    dispatcher_address: str


@dataclass
class WaitForDispatcherRegistrationRequest:
    """Request for a dispatcher's address. ``timeout`` is in seconds."""

    dispatcher_id: int
    timeout: float


@dataclass
class WaitForDispatcherRegistrationResponse:
    """Address of the dispatcher, HOST:PORT."""

    dispatcher_address: str


@dataclass
class RegisterDispatcherWorkerRequest:
    """Registration of a dispatcher's worker."""

    dispatcher_id: int
    worker_id: int


@dataclass
class WaitForDispatcherWorkerRegistrationRequest:
    """Request to wait until all of a dispatcher's workers are registered. ``timeout`` is in seconds."""

    dispatcher_id: int
    timeout: float


@dataclass
class ShutdownRequest:
    """Notification that the service is not needed any more."""


@dataclass
class WaitForShutdownRequest:
    """Request to wait until the service is not needed any more."""
