"""What the doctor's probe on one host tells the launcher, and what the launcher makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from horovod.common.devices.affinity import Card, Near, Port
from horovod.common.devices.nvml import Survey
from horovod.common.network.interfaces import Interface

OK, WARN, FAIL = "OK", "WARN", "FAIL"

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Texts = Annotated[list[_Text], msgspec.Meta(max_length=1024)]


class Tried(msgspec.Struct, frozen=True):
    """One address of another rank. `outcome`: empty when it answered and proved to be that rank."""

    peer: int
    address: _Text
    interface: _Text
    outcome: _Text


class Measured(msgspec.Struct, frozen=True):
    """A connection to another rank. `error`: why there are no figures."""

    peer: int
    address: _Text
    interface: _Text
    round_trip_us: float = 0.0
    gigabits: float = 0.0  # per second, one stream, in this direction
    error: _Text = ""


class Place(msgspec.Struct, frozen=True):
    """What is near a GPU."""

    near: Near
    cards: Annotated[list[Card], msgspec.Meta(max_length=1024)]


class DeviceReport(msgspec.Struct, frozen=True):
    """GPUs of one host, and what ranks need for them. Empty: it is not there, or nothing is wrong with it."""

    survey: Survey
    usable: _Texts = []  # entries of CUDA_VISIBLE_DEVICES that a worker there can be given
    variable: str | None = None  # CUDA_VISIBLE_DEVICES of a worker there
    places: Annotated[list[Place], msgspec.Meta(max_length=1024)] = []  # of the GPUs, in their order
    hardware: dict[_Text, _Texts] = {}  # vendor -> PCI addresses, also without a driver
    driver: _Text = ""  # name or path of CUDA's driver
    driver_error: _Text = ""  # why it cannot be loaded
    cuda_error: _Text = ""  # why CUDA does not start
    ipc_error: _Text = ""  # why processes cannot share memory of GPUs
    jit: _Text = ""  # the library that compiles our kernels for a GPU
    cache: _Text = ""  # where what is compiled is kept
    cache_error: _Text = ""
    torch_cuda: _Text = ""  # that PyTorch was built for
    torch_rocm: _Text = ""
    nccl: _Text = ""  # path
    nccl_source: _Text = ""
    nccl_version: int = 0
    nccl_error: _Text = ""
    nccl_packages: dict[_Text, _Text] = {}
    nvtx: _Text = ""
    mps: _Text = ""  # folder of the pipes of a daemon that lets processes share a GPU
    direct: _Text = ""  # what lets network cards reach the memory of GPUs
    ports: Annotated[list[Port], msgspec.Meta(max_length=1024)] = []


class MpiReport(msgspec.Struct, frozen=True):
    """The MPI that could carry a job there. Empty: there is none, or nothing is wrong with it."""

    path: _Text = ""
    source: _Text = ""  # where it was found
    missing: _Text = ""  # why none was found
    version: _Text = ""
    abi: _Text = ""  # whose numbers and handles it has
    level: _Text = ""  # of threads, that it grants
    error: _Text = ""  # why it cannot be used
    one_thread: bool = False  # HOROVOD_MPI_THREADS_DISABLE


class ContainerReport(msgspec.Struct, frozen=True):
    """What a container, or another group of limited processes, lets ranks have. -1: no limit, or not known."""

    kind: _Text = ""  # "docker", "podman", ...; empty: nothing says that this is one
    memory_limit: int = -1  # bytes
    tasks_limit: int = -1  # processes and threads
    tasks_free: int = -1
    shm: int = -1  # bytes of the file system at /dev/shm
    shm_error: _Text = ""  # why programs cannot put anything there
    machine: _Text = ""  # the same for all containers of one running kernel
    spaces: dict[_Text, _Text] = {}  # "ipc", "pid", "mnt" -> which namespace


class HostReport(msgspec.Struct, frozen=True):
    """One host, as a worker there sees it. Sizes in bytes; -1 where a limit is unlimited or a size unknown."""

    version: _Text
    python: _Text
    executable: _Text
    kernel: _Text
    engine_error: _Text  # why horovod._core cannot be loaded
    ciphers: _Texts
    frameworks: dict[_Text, _Text]  # distribution -> version
    interfaces: Annotated[list[Interface], msgspec.Meta(max_length=4096)]
    wanted_interfaces: _Text  # HOROVOD_GLOO_IFACE
    cores: int  # that a worker may run on
    all_cores: int
    quota: float | None  # cores that the container may use
    load: float  # of the last minute
    memory: int  # of the machine, or as much as the container may have of it
    memory_available: int
    memfd_error: _Text
    shm_free: int  # in /dev/shm, -1 without one
    limits: dict[_Text, tuple[int, int]]  # soft, hard
    devices: DeviceReport
    mpi: MpiReport = MpiReport()
    container: ContainerReport = ContainerReport()
    tried: Annotated[list[Tried], msgspec.Meta(max_length=65536)] = []
    measured: Annotated[list[Measured], msgspec.Meta(max_length=65536)] = []
    pairs_error: _Text = ""  # why the network was not, or not wholly, examined


@dataclass(frozen=True)
class HostAnswer:
    """One of the hosts that were asked for."""

    host: str
    slots: int
    remote: bool = False
    connect_seconds: float = 0.0
    clock_offset: float = 0.0  # s by which its clock is ahead of the launcher's
    failure: str = ""  # why there is no agent; what to do is on the following lines
    gpus_each: int = 0  # that each worker there is to get (--gpus-per-worker) ...
    visible_devices: str | None = None  # ... of these of the agent
    rank: int = -1  # of the probe there, by which reports name it
    report: HostReport | None = None


@dataclass(frozen=True)
class Finding:
    """`level`: OK, WARN or FAIL. `host`: empty for what concerns several."""

    level: str
    check: str
    host: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor says in the end."""

    answers: list[HostAnswer]
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return not any(finding.level == FAIL for finding in self.findings)
