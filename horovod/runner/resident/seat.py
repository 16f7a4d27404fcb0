"""What a worker does to become a part of a job: says who it is, gets the job's key, and has the variables of a rank.

The key does not travel with what the cluster manager carries. The worker makes a pair of keys and tells the public one
by the manager, the driver tells its own likewise, and the job's key comes over a connection of ours that is encrypted
for these two (``horovod.common.handover``). Who only listens to the manager's network learns nothing; who can change
what the manager carries could have run programs in the workers as well.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import zmq
import zmq.utils.z85

from horovod._version import __version__
from horovod.common.contract.worker_env import make_key_fd
from horovod.common.handover import handover
from horovod.common.network import interfaces
from horovod.common.security.auth import AuthError
from horovod.runner.resident.lifeline import Line, Where


class SeatError(RuntimeError):
    """A worker cannot become a part of the job."""


@dataclass(frozen=True)
class Resident:
    """What a process says of itself. `name`: its host's; `machine`: the same for processes that can share memory;
    `python`: "3.11"; `public`: the key (32 bytes) by which the driver knows it."""

    name: str
    machine: str
    pid: int
    version: str
    python: str
    public: bytes


@dataclass(frozen=True)
class Seat:
    """What the driver tells a worker. `number`: of the worker, under which the driver knows its public key; `host`,
    `door`, `line`, `pulse`: where the driver is; `public`: its key, 32 bytes; `variables`: of this worker; `seconds` to
    come; `silence`: s without a sign of life after which one counts as lost."""

    number: int
    host: str
    door: int
    line: int
    pulse: int
    public: bytes = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)
    seconds: float
    silence: float


@dataclass(frozen=True)
class _Taken:
    """`fd`: the key; `before`: what the variables that were set had been, None: not there."""

    fd: int
    line: Line
    before: Mapping[str, str | None]


_pair: list[tuple[bytes, bytes]] = []  # this process's keys, public and secret
_taken: list[_Taken] = []


def describe() -> Resident:
    """This process."""
    if not _pair:
        _pair.append(zmq.curve_keypair())
    name, _, _ = os.uname().nodename.partition(".")
    return Resident(
        name=name or "localhost",
        machine=interfaces.machine_identity(shared=True),
        pid=os.getpid(),
        version=__version__,
        python=".".join(platform.python_version_tuple()[:2]),
        public=zmq.utils.z85.decode(_pair[0][0]),
    )


def sit(seat: Seat, others: Mapping[int, str] | None = None) -> None:
    """Takes the seat, leaving the one before. `others`: pids of processes without which this one is to end, with what
    they are. Raises SeatError when the driver does not answer."""
    rise()
    where = f"the driver at {seat.host}"
    found = handover.receive(
        [(seat.host, seat.door)], seat.public, _pair[0], seat.number, time.monotonic() + seat.seconds
    )
    if found is None:
        raise SeatError(
            f"worker {seat.number} on host {os.uname().nodename} has waited {seat.seconds:g} s for {where}, port "
            f"{seat.door}, which does not answer: hosts have to reach one another on all ports, and the driver has to "
            "run within the cluster"
        )
    _, port, key = found
    try:
        line = Line(Where(seat.host, seat.line, seat.pulse, seat.silence), key, seat.number, others or {}, seat.seconds)
    except (OSError, AuthError) as error:
        raise SeatError(f"worker {seat.number} cannot reach {where}, port {seat.line}: {error}") from None
    fd = make_key_fd(key)
    variables = {
        **seat.variables,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": seat.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_KEY_FD": str(fd),
    }
    _taken.append(_Taken(fd, line, {name: os.environ.get(name) for name in variables}))
    os.environ.update(variables)


def rise() -> None:
    """This process is no part of the job any more: its key is gone, its variables are what they were before. Harmless
    without a seat."""
    while _taken:
        taken = _taken.pop()
        taken.line.close()
        for name, value in taken.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        os.close(taken.fd)
