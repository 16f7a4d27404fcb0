"""Functions that let a worker join a job. The worker describes itself, gets the job's key, and sets its variables.

The key is not sent through the cluster manager, so a program that records the manager's traffic cannot obtain it. The
driver and the worker each create a key pair, and exchange the public keys through the manager. The driver then sends
the job's key over a connection that only these two can decrypt (``horovod.common.key_exchange``). An attacker who can
change the manager's messages could run programs in the workers anyway.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import zmq
import zmq.utils.z85

from horovod._version import __version__
from horovod.common.contract.worker_env import make_key_fd
from horovod.common.key_exchange import curve_exchange
from horovod.common.network import interfaces
from horovod.common.network.connecting import free_port
from horovod.common.security.auth import AuthError
from horovod.runner.elastic import workers as placement
from horovod.runner.elastic.workers import Candidate
from horovod.runner.external_workers.liveness import LivenessAddress, LivenessConnection
from horovod.runner.plan.hosts import Machines, Slot


class AssignmentError(RuntimeError):
    """Error raised if a worker cannot join the job, because the driver does not answer."""


@dataclass(frozen=True)
class ExternalWorker:
    """Description of a worker process, created by the process itself.

    Attributes:
        name: Name of the worker's host.
        machine: Identity of the machine. It is equal for processes that can share memory.
        pid: Process id of the worker.
        version: Version of horovod.
        python: Version of Python, such as "3.11".
        public: Public key (32 bytes) with which the driver recognizes the worker.
        free_port: TCP port of the host that was not in use.
    """

    name: str
    machine: str
    pid: int
    version: str
    python: str
    public: bytes
    free_port: int = 0


@dataclass(frozen=True)
class Assignment:
    """Data that a worker needs to join a job.

    Attributes:
        number: Number of the worker.
        host: Address of the driver.
        key_port: Port at which the driver sends the key to workers.
        liveness_port: Port at which the driver accepts liveness connections.
        heartbeat_port: Port at which the driver accepts heartbeat connections.
        public: Public key of the driver, 32 bytes.
        variables: Environment variables of the worker.
        seconds: Time limit for joining the job, in seconds.
        silence: Seconds without an answer after which a worker is considered lost.
    """

    number: int
    host: str
    key_port: int
    liveness_port: int
    heartbeat_port: int
    public: bytes = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)
    seconds: float
    silence: float


@dataclass(frozen=True)
class _SavedState:
    """State to restore when the worker leaves the job.

    Attributes:
        fd: Descriptor of the key.
        connection: Liveness connection.
        before: Previous values of the variables, or None for variables that were not set.
    """

    fd: int
    connection: LivenessConnection
    before: Mapping[str, str | None]


_pair: list[tuple[bytes, bytes]] = []  # This process's public and secret key, or empty until they are created
_saved: list[_SavedState] = []


def describe() -> ExternalWorker:
    """Return a description of this worker process for the driver."""
    if not _pair:
        _pair.append(zmq.curve_keypair())
    name, _, _ = os.uname().nodename.partition(".")
    return ExternalWorker(
        name=name or "localhost",
        machine=interfaces.machine_identity(shared=True),
        pid=os.getpid(),
        version=__version__,
        python=".".join(platform.python_version_tuple()[:2]),
        public=zmq.utils.z85.decode(_pair[0][0]),
        free_port=free_port(),
    )


def join(assignment: Assignment, peers: Mapping[int, str] | None = None) -> None:
    """Join a job. If the worker has already joined a job, it leaves that job first.

    Args:
        assignment: Data that the driver has sent.
        peers: Processes on which this process depends. If one of them exits, this process exits too. Maps pids to
            descriptions.

    Raises:
        AssignmentError: If the driver does not answer.
    """
    leave()
    where = f"the driver at {assignment.host}"
    found = curve_exchange.receive(
        [(assignment.host, assignment.key_port)],
        assignment.public,
        _pair[0],
        assignment.number,
        time.monotonic() + assignment.seconds,
    )
    if found is None:
        raise AssignmentError(
            f"worker {assignment.number} on host {os.uname().nodename} has waited {assignment.seconds:g} s for {where}"
            f", port {assignment.key_port}, which does not answer: hosts have to reach one another on all ports, and "
            "the driver has to run within the cluster"
        )
    _, port, key = found
    address = LivenessAddress(assignment.host, assignment.liveness_port, assignment.heartbeat_port, assignment.silence)
    try:
        connection = LivenessConnection(address, key, assignment.number, peers or {}, assignment.seconds)
    except (OSError, AuthError) as error:
        raise AssignmentError(
            f"worker {assignment.number} cannot reach {where}, port {assignment.liveness_port}: {error}"
        ) from None
    fd = make_key_fd(key)
    variables = {
        **assignment.variables,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": assignment.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_KEY_FD": str(fd),
    }
    _saved.append(_SavedState(fd, connection, {name: os.environ.get(name) for name in variables}))
    os.environ.update(variables)


def leave() -> None:
    """Leave the job: forget its key, and restore the previous environment variables.

    Do nothing if no job was joined.
    """
    while _saved:
        taken = _saved.pop()
        taken.connection.close()
        for name, value in taken.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        os.close(taken.fd)


def hosts(workers: Sequence[ExternalWorker]) -> list[str]:
    """Return a host name for each worker. Workers on the same machine get the same name."""
    machines = Machines()
    return [machines.name(one.machine, one.name) for one in workers]


def slots(names: Sequence[str]) -> list[Slot]:
    """Return a slot for each rank. `names` contains the ranks' host names, in rank order."""
    places = placement.places([Candidate(rank, name) for rank, name in enumerate(names)])
    return [places[rank] for rank in range(len(names))]


def misfit(workers: Sequence[ExternalWorker], version: str = __version__) -> str:
    """Return the reason why these workers cannot form one job, or an empty string.

    `version` is the driver's version of horovod.
    """
    for index, one in enumerate(workers):
        who = f"worker {index} (host {one.name}, pid {one.pid})"
        if one.version != version:
            return f"{who} has horovod {one.version}, the driver has {version}; install the same on all hosts"
        if one.python != workers[0].python:
            return f"{who} has Python {one.python}, worker 0 has {workers[0].python}; install the same on all hosts"
    return ""
