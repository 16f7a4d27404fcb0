"""Report of the doctor's probe on one host, and the diagnosis that the launcher makes of the reports."""

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
    """Attempt to connect to an address of another rank. `outcome` is empty if that rank answered."""

    peer: int
    address: _Text
    interface: _Text
    outcome: _Text


class Measured(msgspec.Struct, frozen=True):
    """Measurement of a connection to another rank. `error` is why there are no figures."""

    peer: int
    address: _Text
    interface: _Text
    round_trip_us: float = 0.0
    gigabits: float = 0.0  # Gbit/s of one stream in this direction
    error: _Text = ""


class Place(msgspec.Struct, frozen=True):
    """CPUs and network cards near a GPU."""

    near: Near
    cards: Annotated[list[Card], msgspec.Meta(max_length=1024)]


class DeviceReport(msgspec.Struct, frozen=True):
    """GPUs of one host, and the software that ranks need for them. Empty texts mean absent, or free of errors."""

    survey: Survey
    usable: _Texts = []  # entries of CUDA_VISIBLE_DEVICES that can be assigned to a worker there
    variable: str | None = None  # CUDA_VISIBLE_DEVICES of a worker there
    places: Annotated[list[Place], msgspec.Meta(max_length=1024)] = []  # in the order of the GPUs
    hardware: dict[_Text, _Texts] = {}  # vendor to PCI addresses, known even without a driver
    driver: _Text = ""  # name or path of CUDA's driver library
    driver_error: _Text = ""  # why it cannot be loaded
    cuda_error: _Text = ""  # why CUDA does not start
    ipc_error: _Text = ""  # why processes cannot share GPU memory
    jit: _Text = ""  # path of the library that compiles Horovod's kernels for a GPU
    cache: _Text = ""  # folder of compiled kernels
    cache_error: _Text = ""
    torch_cuda: _Text = ""  # CUDA version for which PyTorch was built
    nccl: _Text = ""  # path of the library
    nccl_source: _Text = ""
    nccl_version: int = 0
    nccl_error: _Text = ""
    nccl_packages: dict[_Text, _Text] = {}
    nvtx: _Text = ""
    mps: _Text = ""  # folder of the MPS daemon's pipes, which lets processes share a GPU
    direct: _Text = ""  # what lets network cards access GPU memory
    ports: Annotated[list[Port], msgspec.Meta(max_length=1024)] = []


class MpiReport(msgspec.Struct, frozen=True):
    """MPI that could carry a job on this host. Empty texts mean absent, or free of errors."""

    path: _Text = ""
    source: _Text = ""  # where it was found
    missing: _Text = ""  # why none was found
    version: _Text = ""
    abi: _Text = ""  # implementation whose ABI it has
    level: _Text = ""  # thread support level that it grants
    error: _Text = ""  # why it cannot be used
    one_thread: bool = False  # HOROVOD_MPI_THREADS_DISABLE


class ContainerReport(msgspec.Struct, frozen=True):
    """Limits of a container, or another limited group of processes. -1 means no limit, or not known."""

    kind: _Text = ""  # "docker", "podman", ...; empty if no container is detected
    memory_limit: int = -1  # bytes
    tasks_limit: int = -1  # processes and threads
    tasks_free: int = -1
    shm: int = -1  # bytes of the file system at /dev/shm
    shm_error: _Text = ""  # why programs cannot write there
    machine: _Text = ""  # identity of the running kernel, equal for all containers on it
    spaces: dict[_Text, _Text] = {}  # "ipc", "pid", "mnt" to the namespace's identity


class HostReport(msgspec.Struct, frozen=True):
    """One host, as a worker there sees it. Sizes are in bytes; -1 means no limit or an unknown size."""

    version: _Text
    python: _Text
    executable: _Text
    kernel: _Text
    engine_error: _Text  # why horovod._core cannot be loaded
    ciphers: _Texts
    frameworks: dict[_Text, _Text]  # distribution to version
    interfaces: Annotated[list[Interface], msgspec.Meta(max_length=4096)]
    wanted_interfaces: _Text  # HOROVOD_GLOO_IFACE
    cores: int  # number of cores that a worker may run on
    all_cores: int
    quota: float | None  # number of cores that the container may use
    load: float  # load average of the last minute
    memory: int  # of the machine, or the container's share of it
    memory_available: int
    memfd_error: _Text
    shm_free: int  # bytes free in /dev/shm, -1 without one
    limits: dict[_Text, tuple[int, int]]  # (soft, hard) by name
    devices: DeviceReport
    mpi: MpiReport = MpiReport()
    container: ContainerReport = ContainerReport()
    tried: Annotated[list[Tried], msgspec.Meta(max_length=65536)] = []
    measured: Annotated[list[Measured], msgspec.Meta(max_length=65536)] = []
    pairs_error: _Text = ""  # why the network was not checked, or not completely


@dataclass(frozen=True)
class HostAnswer:
    """One of the requested hosts."""

    host: str
    slots: int
    remote: bool = False
    connect_seconds: float = 0.0
    clock_offset: float = 0.0  # s by which its clock is ahead of the launcher's
    failure: str = ""  # why there is no agent; the following lines are advice
    gpus_each: int = 0  # GPUs for each worker (--gpus-per-worker)
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES of the agent, which limits these GPUs
    rank: int = -1  # rank of the probe there, as used in reports
    report: HostReport | None = None


@dataclass(frozen=True)
class Finding:
    """Result of a check. `level` is OK, WARN or FAIL; `host` is empty for several hosts."""

    level: str
    check: str
    host: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Answers of the hosts, and all findings about them."""

    answers: list[HostAnswer]
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """True if no check has failed."""
        return not any(finding.level == FAIL for finding in self.findings)
