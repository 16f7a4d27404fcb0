"""Command lines of mpirun and mpiexec. Pure.

They contain names of variables but never values, because other users of the machine can read command lines. mpirun
takes the values from its own environment.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from horovod.runner.base.errors import LaunchError
from horovod.runner.plan.hosts import Slot
from horovod.runner.plan.settings import MpiOptions

MANY_HOSTS = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables of an outer job, or set by the launcher itself for each process.
_NOT_EXPORTED = re.compile(r"OMPI_|PMIX|PMI_|PRTE_|OPAL_|HYDRA_|HYDI_|SLURM|I_MPI_|JSM_")


class Flavour(Enum):
    """Families of MPI launchers, by the output of `mpirun --version`."""

    OPEN_MPI = "Open MPI"
    SPECTRUM = "IBM Spectrum MPI"
    MPICH = "MPICH"
    INTEL = "Intel MPI"

    @property
    def hydra(self) -> bool:
        """True if the family uses MPICH's launcher, Hydra."""
        return self in (Flavour.MPICH, Flavour.INTEL)


def recognise(version: str) -> Flavour | None:
    """Return the family from the output of `mpirun --version`, or None for an unknown one."""
    if "IBM Spectrum MPI" in version:
        return Flavour.SPECTRUM
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version:
        return Flavour.OPEN_MPI
    if "Intel(R) MPI" in version:
        return Flavour.INTEL
    if re.search(r"HYDRA|MPICH|MVAPICH", version):
        return Flavour.MPICH
    return None


def exported(names: Collection[str]) -> list[str]:
    """Return the names of variables that every process gets, sorted."""
    return sorted(name for name in names if _NAME.fullmatch(name) and not _NOT_EXPORTED.match(name))


def build(
    program: str,
    flavour: Flavour,
    slots: Sequence[Slot],
    command: Sequence[str],
    names: Sequence[str],
    given: MpiOptions,
    *,
    interfaces: str = "",
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    carries: bool = False,
) -> list[str]:
    """Return the command line that starts `command` once for each slot.

    Args:
        program: Path of mpirun.
        flavour: Family of mpirun.
        slots: Places of the ranks.
        command: Command of the ranks.
        names: Names of variables to export.
        given: The user's options.
        interfaces: Network interfaces separated by commas, or empty.
        ssh_port: Port of ssh on other hosts.
        ssh_identity_file: Private key for ssh.
        carries: True if tensors are sent by MPI, which then selects its transport itself.

    Raises:
        LaunchError: This mpirun does not support an option.
    """
    counts: dict[str, int] = {}
    for slot in slots:
        counts[slot.hostname] = counts.get(slot.hostname, 0) + 1
    if flavour.hydra:
        if ssh_port is not None or ssh_identity_file is not None:
            raise LaunchError(
                f"--ssh-port and --ssh-identity-file: mpirun of {flavour.value} takes neither; set Port and "
                "IdentityFile for these hosts in ~/.ssh/config"
            )
        words = _hydra(counts, len(slots), names, given, interfaces)
    else:
        words = _open_mpi(flavour, counts, len(slots), names, given, interfaces, carries)
        ssh = (["-p", str(ssh_port)] if ssh_port else []) + (["-i", ssh_identity_file] if ssh_identity_file else [])
        words += ["--mca", "plm_rsh_args", shlex.join(ssh)] if ssh else []
    return [program, *words, *given.extra, *command]


def _open_mpi(
    flavour: Flavour,
    counts: Mapping[str, int],
    size: int,
    names: Sequence[str],
    given: MpiOptions,
    interfaces: str,
    carries: bool,
) -> list[str]:
    spectrum = flavour is Flavour.SPECTRUM
    words = ["--allow-run-as-root", "--tag-output", "-np", str(size)]
    words += ["-H", ",".join(f"{host}:{count}" for host, count in counts.items())]
    if given.binding is not None:
        words += given.binding
    elif spectrum:
        words += ["--bind-to", "socket", "--map-by", "socket", "--rank-by", "core"]
    else:
        words += ["--bind-to", "none", "--map-by", "slot"]
    words += ["-tcp"] if spectrum and given.tcp else []
    if not spectrum and not carries:
        words += ["--mca", "pml", "ob1", "--mca", "btl", "^openib"]
    if interfaces:
        words += ["--mca", "btl_tcp_if_include", interfaces, "--mca", "oob_tcp_if_include", interfaces]
    if len(counts) >= MANY_HOSTS:
        words += ["--mca", "plm_rsh_no_tree_spawn", "true", "--mca", "plm_rsh_num_concurrent", str(len(counts))]
    return words + [word for name in names for word in ("-x", name)]


def _hydra(counts: Mapping[str, int], size: int, names: Sequence[str], given: MpiOptions, interfaces: str) -> list[str]:
    words = ["-l", "-np", str(size)]
    if len(set(counts.values())) == 1:
        words += ["-hosts", ",".join(counts), "-ppn", str(size // len(counts))]
    else:
        words += ["-hosts", ",".join(f"{host}:{count}" for host, count in counts.items())]
    words += given.binding if given.binding is not None else ["-bind-to", "none"]
    words += ["-iface", interfaces.split(",")[0]] if interfaces else []
    return words + ["-genvlist", ",".join(names)]
