"""Request and response classes of the data service, kept for programs that import them.

Horovod's documentation names these classes, but Horovod does not send them. `horovod.common.compute` implements the
data service with the protocol of the job's store. Clients call methods of `ComputeClient`.
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
    """Request to register a dispatcher, with its address as HOST:PORT."""

    dispatcher_id: int
    dispatcher_address: str


@dataclass
class WaitForDispatcherRegistrationRequest:
    """Request for the address of a dispatcher. `timeout` is in seconds."""

    dispatcher_id: int
    timeout: float


@dataclass
class WaitForDispatcherRegistrationResponse:
    """Response with the address of the dispatcher, as HOST:PORT."""

    dispatcher_address: str


@dataclass
class RegisterDispatcherWorkerRequest:
    """Request to register a worker with its dispatcher."""

    dispatcher_id: int
    worker_id: int


@dataclass
class WaitForDispatcherWorkerRegistrationRequest:
    """Request to wait until all workers of a dispatcher have registered. `timeout` is in seconds."""

    dispatcher_id: int
    timeout: float


@dataclass
class ShutdownRequest:
    """Notification that the data service is no longer needed."""


@dataclass
class WaitForShutdownRequest:
    """Request to wait until the data service is no longer needed."""
