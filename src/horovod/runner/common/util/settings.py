"""Settings classes for programs that start jobs through Horovod's documented Python API."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class BaseSettings:
    """Settings that fixed and elastic jobs share.

    Attributes:
        verbose: Verbosity, 0 to 2.
        start_timeout: Seconds within which the ranks must start.
        nics: Names of the network interfaces to use.
    """

    num_proc: int | None = None
    verbose: int = 0
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    extra_mpi_args: str | None = None
    tcp_flag: bool | None = None
    binding_args: str | None = None
    key: bytes | None = None
    start_timeout: Any = None
    output_filename: str | None = None
    run_func_mode: bool | None = None
    nics: Collection[str] | None = None
    elastic: bool = False
    prefix_output_with_timestamp: bool = False

    def __repr__(self) -> str:  # The default `__repr__` would reveal the secret key.
        return f"{type(self).__name__}(num_proc={self.num_proc})"


@dataclass(kw_only=True, repr=False)
class Settings(BaseSettings):
    """Settings of a job on fixed hosts.

    `hosts` is a string of the form `name:slots,...`, or a list of hosts or slots from
    `horovod.runner.common.util.hosts`.
    """

    hosts: str | Sequence[Any] | None = None
