"""Report of the doctor's probe on one host, and the launcher's diagnosis from these reports."""

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
    """Attempt to connect to an address of another rank. `outcome` is empty if it succeeded, else the error."""

    peer: int
    address: _Text
    interface: _Text
    outcome: _Text


class Measured(msgspec.Struct, frozen=True):
    """Measured speed of a connection to another rank. `error` says why there is no result."""

    peer: int
    address: _Text
    interface: _Text
    round_trip_us: float = 0.0
    gigabits: float = 0.0  # throughput of one stream in this direction, in Gbit/s
    error: _Text = ""


class Place(msgspec.Struct, frozen=True):
    """CPUs and network cards near one GPU."""

    near: Near
    cards: Annotated[list[Card], msgspec.Meta(max_length=1024)]


class DeviceReport(msgspec.Struct, frozen=True):
    """GPUs of one host, and the software that ranks need for them. Empty strings mean "absent" or "no error"."""

    survey: Survey
    usable: _Texts = []  # Entries of CUDA_VISIBLE_DEVICES that a worker can be given.
    variable: str | None = None  # CUDA_VISIBLE_DEVICES of a worker on this host.
    places: Annotated[list[Place], msgspec.Meta(max_length=1024)] = []  # One entry for each GPU, in order.
    hardware: dict[_Text, _Texts] = {}  # PCI addresses of GPUs by vendor, known even without a driver.
    driver: _Text = ""  # Name or path of the CUDA driver library.
    driver_error: _Text = ""  # Reason why the library cannot be loaded.
    cuda_error: _Text = ""  # Reason why CUDA does not start.
    ipc_error: _Text = ""  # Reason why processes cannot share GPU memory.
    jit: _Text = ""  # Path of the library that compiles Horovod's kernels for a GPU.
    cache: _Text = ""  # Folder of compiled kernels.
    cache_error: _Text = ""
    torch_cuda: _Text = ""  # CUDA version for which PyTorch was built.
    nccl: _Text = ""  # Path of the NCCL library.
    nccl_source: _Text = ""
    nccl_version: int = 0
    nccl_error: _Text = ""
    nccl_packages: dict[_Text, _Text] = {}
    nvtx: _Text = ""
    mps: _Text = ""  # Folder with the pipes of the MPS daemon, which lets processes share a GPU.
    direct: _Text = ""  # Feature that lets network cards access GPU memory.
    ports: Annotated[list[Port], msgspec.Meta(max_length=1024)] = []


class MpiReport(msgspec.Struct, frozen=True):
    """MPI that can carry a job on this host. Empty strings mean "absent" or "no error"."""

    path: _Text = ""
    source: _Text = ""  # Place where the library was found.
    missing: _Text = ""  # Reason why no library was found.
    version: _Text = ""
    abi: _Text = ""  # Implementation whose ABI the library has.
    level: _Text = ""  # Thread support level that the library provides.
    error: _Text = ""  # Reason why the library cannot be used.
    one_thread: bool = False  # True if HOROVOD_MPI_THREADS_DISABLE is set.


class ContainerReport(msgspec.Struct, frozen=True):
    """Limits of a container or another limited group of processes. -1 means no limit or unknown."""

    kind: _Text = ""  # "docker", "podman", ...; empty if no container is detected.
    memory_limit: int = -1  # Memory limit in bytes.
    tasks_limit: int = -1  # Maximum number of processes and threads.
    tasks_free: int = -1
    shm: int = -1  # Size in bytes of the file system at /dev/shm.
    shm_error: _Text = ""  # Reason why programs cannot write to /dev/shm.
    machine: _Text = ""  # Identity of the running kernel, equal for all containers on it.
    spaces: dict[_Text, _Text] = {}  # Identity of each namespace: "ipc", "pid", "mnt".


class HostReport(msgspec.Struct, frozen=True):
    """Facts about one host, as a worker there sees it. Sizes are in bytes; -1 means no limit or an unknown size."""

    version: _Text
    python: _Text
    executable: _Text
    kernel: _Text
    engine_error: _Text  # reason why horovod._core cannot be loaded
    ciphers: _Texts
    frameworks: dict[_Text, _Text]  # version of each distribution
    interfaces: Annotated[list[Interface], msgspec.Meta(max_length=4096)]
    wanted_interfaces: _Text  # Value of HOROVOD_GLOO_IFACE.
    cores: int  # Number of cores that a worker may run on.
    all_cores: int
    quota: float | None  # Number of cores that the container may use.
    load: float  # Load average of the last minute.
    memory: int  # Total memory in bytes, of the machine or of the container.
    memory_available: int
    memfd_error: _Text
    shm_free: int  # Bytes free in /dev/shm; -1 if it does not exist.
    limits: dict[_Text, tuple[int, int]]  # (soft, hard) resource limits by name.
    devices: DeviceReport
    mpi: MpiReport = MpiReport()
    container: ContainerReport = ContainerReport()
    tried: Annotated[list[Tried], msgspec.Meta(max_length=65536)] = []
    measured: Annotated[list[Measured], msgspec.Meta(max_length=65536)] = []
    pairs_error: _Text = ""  # reason why the network was not checked completely


@dataclass(frozen=True)
class HostAnswer:
    """One requested host and its answer."""

    host: str
    slots: int
    remote: bool = False
    connect_seconds: float = 0.0
    clock_offset: float = 0.0  # Seconds by which the host's clock is ahead of the launcher's.
    failure: str = ""  # Reason why no agent answered; lines after the first give advice.
    gpus_each: int = 0  # GPUs for each worker (--gpus-per-worker).
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES of the agent, which limits these GPUs.
    rank: int = -1  # Rank of the probe on this host, as used in reports.
    report: HostReport | None = None


@dataclass(frozen=True)
class Finding:
    """Result of one check. `level` is OK, WARN or FAIL; `host` is empty if it concerns several hosts."""

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
