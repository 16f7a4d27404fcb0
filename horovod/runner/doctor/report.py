"""What the doctor's probe on one host tells the launcher, and what the launcher makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

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
    memory: int
    memory_available: int
    memfd_error: _Text
    shm_free: int  # in /dev/shm, -1 without one
    limits: dict[_Text, tuple[int, int]]  # soft, hard
    gpus: _Texts
    gpu_error: _Text  # of nvidia-smi, where there is one
    nccl: _Text
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
