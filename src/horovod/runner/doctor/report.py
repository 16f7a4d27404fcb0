"""Data classes for the probe's report about one host, and for the launcher's diagnosis based on all reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from horovod.common.devices.nvml import Survey
from horovod.common.devices.visible import Card, Near, Port
from horovod.common.network.interfaces import Interface

OK, WARN, FAIL = "OK", "WARN", "FAIL"

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Texts = Annotated[list[_Text], msgspec.Meta(max_length=1024)]


class ConnectionAttempt(msgspec.Struct, frozen=True):
    """Result of an attempt to connect to an address of another rank.

    Attributes:
        peer: Rank to which the connection was attempted.
        address: Address of this rank.
        interface: Name of the local network interface.
        outcome: Error, or an empty string if the connection was established.
    """

    peer: int
    address: _Text
    interface: _Text
    outcome: _Text


class LinkSpeed(msgspec.Struct, frozen=True):
    """Measured speed of a connection to another rank.

    Attributes:
        peer: Rank at the other end.
        address: Address of this rank.
        interface: Name of the local network interface.
        round_trip_us: Median round trip of a small message in microseconds.
        gigabits: Throughput of one stream to this rank in Gbit/s.
        error: Reason why the measurement failed, or an empty string.
    """

    peer: int
    address: _Text
    interface: _Text
    round_trip_us: float = 0.0
    gigabits: float = 0.0
    error: _Text = ""


class Place(msgspec.Struct, frozen=True):
    """CPUs and network cards near one GPU."""

    near: Near
    cards: Annotated[list[Card], msgspec.Meta(max_length=1024)]


class DeviceReport(msgspec.Struct, frozen=True):
    """GPUs of one host, and the software that ranks need for them. Empty strings mean "absent" or "no error".

    Attributes:
        survey: Information about the GPUs that the driver reports.
        usable: Entries of CUDA_VISIBLE_DEVICES that the agent can assign to workers.
        variable: Value of CUDA_VISIBLE_DEVICES in a worker on this host, or None if it is not set.
        places: CPUs and network cards near each GPU, in the order of the GPUs.
        hardware: PCI addresses of the GPUs by vendor. They are known even without a driver.
        driver: Name or path of the CUDA driver library.
        driver_error: Reason why this library cannot be loaded.
        cuda_error: Reason why CUDA cannot be initialized.
        ipc_error: Reason why processes cannot share GPU memory.
        jit: Path of the library with which the driver compiles Horovod's kernels.
        cache: Folder in which the driver caches compiled kernels.
        cache_error: Reason why the driver cannot use this folder.
        torch_cuda: CUDA version for which PyTorch was built.
        nccl: Path of the NCCL library.
        nccl_source: Place where the NCCL library was found.
        nccl_version: Version code of NCCL, or 0 if unknown.
        nccl_error: Reason why NCCL cannot be used.
        nccl_packages: Versions of the installed packages that contain NCCL, by name.
        nvtx: Path of the NVTX library.
        mps: Folder of the pipes of the MPS daemon, which lets processes share a GPU.
        direct: Feature that lets network cards access GPU memory.
        ports: InfiniBand and RoCE ports of the host.
    """

    survey: Survey
    usable: _Texts = []
    variable: str | None = None
    places: Annotated[list[Place], msgspec.Meta(max_length=1024)] = []
    hardware: dict[_Text, _Texts] = {}
    driver: _Text = ""
    driver_error: _Text = ""
    cuda_error: _Text = ""
    ipc_error: _Text = ""
    jit: _Text = ""
    cache: _Text = ""
    cache_error: _Text = ""
    torch_cuda: _Text = ""
    nccl: _Text = ""
    nccl_source: _Text = ""
    nccl_version: int = 0
    nccl_error: _Text = ""
    nccl_packages: dict[_Text, _Text] = {}
    nvtx: _Text = ""
    mps: _Text = ""
    direct: _Text = ""
    ports: Annotated[list[Port], msgspec.Meta(max_length=1024)] = []


class MpiReport(msgspec.Struct, frozen=True):
    """MPI library of one host. Empty strings mean "absent" or "no error".

    Attributes:
        path: Path of the library.
        source: Place where the library was found.
        missing: Reason why no library was found.
        version: Version of the library.
        abi: MPI implementation with whose ABI the library is compatible.
        level: Thread support level that the library provides.
        error: Reason why the library cannot be used.
        one_thread: True if HOROVOD_MPI_THREADS_DISABLE is set.
    """

    path: _Text = ""
    source: _Text = ""
    missing: _Text = ""
    version: _Text = ""
    abi: _Text = ""
    level: _Text = ""
    error: _Text = ""
    one_thread: bool = False


class ContainerReport(msgspec.Struct, frozen=True):
    """Limits of a container, or of another restricted group of processes.

    A value of -1 means that there is no limit or that it is unknown.

    Attributes:
        kind: Container runtime, such as "docker", or an empty string if no container is detected.
        memory_limit: Memory limit in bytes.
        tasks_limit: Maximum number of processes and threads.
        tasks_free: Number of processes and threads that can still be started.
        shm: Size of /dev/shm in bytes.
        shm_error: Reason why programs cannot write to /dev/shm.
        machine: Identity of the running kernel. It is equal for all containers on a machine.
        spaces: Identities of the "ipc", "pid" and "mnt" namespaces.
    """

    kind: _Text = ""
    memory_limit: int = -1
    tasks_limit: int = -1
    tasks_free: int = -1
    shm: int = -1
    shm_error: _Text = ""
    machine: _Text = ""
    spaces: dict[_Text, _Text] = {}


class HostReport(msgspec.Struct, frozen=True):
    """Information about one host, as a worker on this host sees it. -1 means no limit or an unknown size.

    Attributes:
        version: Version of horovod.
        python: Version of Python.
        executable: Path of the Python interpreter.
        kernel: Version of the Linux kernel.
        engine_error: Reason why horovod._core cannot be loaded, or an empty string.
        ciphers: Ciphers with which the engine can encrypt connections.
        frameworks: Versions of the installed frameworks, by package name.
        interfaces: Network interfaces of the host.
        wanted_interfaces: Value of HOROVOD_GLOO_IFACE.
        cores: Number of cores on which a worker can run.
        all_cores: Number of cores of the host.
        quota: Number of cores that the container can use, or None for no limit.
        load: Load average of the last minute.
        memory: Total memory of the machine or container in bytes.
        memory_available: Available memory in bytes.
        memfd_error: Reason why ranks cannot share memory, or an empty string.
        shm_free: Free space in /dev/shm in bytes, or -1 if /dev/shm does not exist.
        limits: Soft and hard resource limits by name.
        devices: GPUs and their software.
        mpi: MPI library.
        container: Limits of the container.
        tried: Attempts to connect to other ranks.
        measured: Speeds of connections to other ranks.
        pairs_error: Reason why the network was not checked completely, or an empty string.
    """

    version: _Text
    python: _Text
    executable: _Text
    kernel: _Text
    engine_error: _Text
    ciphers: _Texts
    frameworks: dict[_Text, _Text]
    interfaces: Annotated[list[Interface], msgspec.Meta(max_length=4096)]
    wanted_interfaces: _Text
    cores: int
    all_cores: int
    quota: float | None
    load: float
    memory: int
    memory_available: int
    memfd_error: _Text
    shm_free: int
    limits: dict[_Text, tuple[int, int]]
    devices: DeviceReport
    mpi: MpiReport = MpiReport()
    container: ContainerReport = ContainerReport()
    tried: Annotated[list[ConnectionAttempt], msgspec.Meta(max_length=65536)] = []
    measured: Annotated[list[LinkSpeed], msgspec.Meta(max_length=65536)] = []
    pairs_error: _Text = ""


@dataclass(frozen=True)
class HostResult:
    """Result of probing one of the hosts that the user has requested.

    Attributes:
        host: Name of the host.
        slots: Number of ranks on the host.
        remote: True if the host is not this machine.
        connect_seconds: Seconds until the agent on the host answered.
        clock_offset: Seconds by which the host's clock is ahead of the launcher's clock.
        failure: Why no agent answered, or an empty string. Lines after the first give advice.
        gpus_each: Number of GPUs for each worker (--gpus-per-worker), or 0.
        visible_devices: CUDA_VISIBLE_DEVICES of the agent, or None. It limits the GPUs that workers can use.
        rank: Rank of the probe on this host, or -1.
        report: Report of this probe, or None.
    """

    host: str
    slots: int
    remote: bool = False
    connect_seconds: float = 0.0
    clock_offset: float = 0.0
    failure: str = ""
    gpus_each: int = 0
    visible_devices: str | None = None
    rank: int = -1
    report: HostReport | None = None


@dataclass(frozen=True)
class Finding:
    """Result of one host check.

    Attributes:
        level: OK, WARN or FAIL.
        check: Name of the check.
        host: Host to which the result applies, or an empty string for several hosts.
        text: Description of the result.
        advice: How to fix the problem, or an empty string.
    """

    level: str
    check: str
    host: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a job's hosts: their answers, and the findings of all checks."""

    results: list[HostResult]
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """True if no check has failed. Warnings are ignored."""
        return not any(finding.level == FAIL for finding in self.findings)
