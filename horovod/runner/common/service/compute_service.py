"""Where the parts of a data service find one another. Its home is horovod.common, where faces reach it.

The requests and answers are names that programs import. Ours does not send them: its service speaks as the store of a
job does, and ComputeClient's methods are what asks."""

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
    """A dispatcher is at HOST:PORT."""

    dispatcher_id: int
    dispatcher_address: str


@dataclass
class WaitForDispatcherRegistrationRequest:
    """Where is it? ``timeout``: seconds."""

    dispatcher_id: int
    timeout: float


@dataclass
class WaitForDispatcherRegistrationResponse:
    """There: HOST:PORT."""

    dispatcher_address: str


@dataclass
class RegisterDispatcherWorkerRequest:
    """A worker of a dispatcher is there."""

    dispatcher_id: int
    worker_id: int


@dataclass
class WaitForDispatcherWorkerRegistrationRequest:
    """Are all of its workers there? ``timeout``: seconds."""

    dispatcher_id: int
    timeout: float


@dataclass
class ShutdownRequest:
    """Nobody needs the service any more."""


@dataclass
class WaitForShutdownRequest:
    """Does nobody need it any more?"""
