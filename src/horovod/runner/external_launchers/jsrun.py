"""The `horovodrun --jsrun` command, which starts a job through jsrun inside an LSF job.

An explicit resource file determines the host and the cores of each rank. Its format is described in IBM Job Step
Manager, "Explicit resource files".
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from horovod.common import launchers
from horovod.runner.base.job_result import JobResult, LaunchError
from horovod.runner.base.linux import SignalQueue
from horovod.runner.external_launchers import foreign_job, mpi
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


def build(program: str, path: str, names: Sequence[str], extra: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return jsrun's command line. It contains only the names of environment variables, not their values."""
    words = [program, "--erf_input", path]
    return words + [word for name in names for word in ("-E", name)] + list(extra) + list(command)


def run_job(settings: LaunchSettings, environ: Mapping[str, str], signals: SignalQueue | None = None) -> JobResult:
    """Run a job through jsrun to completion. Raises OSError or LaunchError if it cannot be started."""
    program = check(environ)
    variables = mpi.job_variables(settings, environ)
    cores = {host.name: host.slots for host in lsf_hosts(environ)}
    given = settings.mpi or MpiOptions()
    with _file(rankfile(settings.slots, cores)) as path:
        command = build(
            program, path, mpi.names_to_export(settings, variables, far=True), given.extra, settings.whole_command
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
    """
    fd, path = tempfile.mkstemp(prefix="horovod-", suffix=".erf")
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)
