"""Classes of the data service's registry, which `horovod.common.compute` implements.

Programs can import these requests and responses, because their names are documented. They are never sent: the service
uses the protocol of the job's store, and clients call the methods of `ComputeClient`.
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
    """Request for the address of a dispatcher. ``timeout`` is in seconds."""

    dispatcher_id: int
    timeout: float


@dataclass
class WaitForDispatcherRegistrationResponse:
    """Response with the address of the dispatcher, HOST:PORT."""

    dispatcher_address: str


@dataclass
class RegisterDispatcherWorkerRequest:
    """Registration of a worker with its dispatcher."""

    dispatcher_id: int
    worker_id: int


@dataclass
class WaitForDispatcherWorkerRegistrationRequest:
    """Request to wait until all of a dispatcher's workers are registered. ``timeout`` is in seconds."""

    dispatcher_id: int
    timeout: float


@dataclass
class ShutdownRequest:
    """Notification that the service is no longer needed."""


@dataclass
class WaitForShutdownRequest:
    """Request to wait until the service is no longer needed."""
