"""Checks of the MPI library on a host. MPI can start and connect a job's ranks (docs/mpi.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from horovod.common.contract.settings import BY_NAME
from horovod.common.devices import mpi_libraries
from horovod.common.devices.libraries import Library
from horovod.runner.doctor.report import FAIL, OK, WARN, Finding, HostResult, MpiReport

_OPERATIONS = "HOROVOD_CPU_OPERATIONS"
_THREADS = "HOROVOD_MPI_THREADS_DISABLE"
_LOW = ("MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED")


def examine(environ: Mapping[str, str] = os.environ) -> MpiReport:
    """Examine the MPI library of this host. A separate process initializes it. The function raises no exceptions."""
    try:
        one_thread = bool(BY_NAME[_THREADS].parse(environ.get(_THREADS, "")))
        library = mpi_libraries.find_for_launch(environ)
    except ValueError as error:
        return MpiReport(error=str(error)[:4000])
    if not isinstance(library, Library):
        return MpiReport(missing=library.reason[:4000])
    tried = mpi_libraries.try_mpi(library.path, environ)
    return MpiReport(
        path=library.path[:4000],
        source=library.source[:4000],
        version=tried.version[:4000],
        abi=tried.abi,
        level=tried.level,
        error=tried.error[:4000],
        one_thread=one_thread,
    )


def check(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that MPI works on each host that has it, and that all hosts have the same version."""
    reports = {answer.host: answer.report.mpi for answer in results if answer.report is not None}
    for host, report in reports.items():
        yield from _of_host(host, report)
    known = {host: report.version for host, report in reports.items() if report.version}
    if len(set(known.values())) > 1:
        texts = [
            f"{version} on {', '.join(host for host, other in known.items() if other == version)}"
            for version in sorted(set(known.values()))
        ]
        advice = "all processes of a job need one and the same; HOROVOD_MPI_LIBRARY names a file"
        yield Finding(WARN, "MPI", "", "differs: " + "; ".join(texts), advice)


def _of_host(host: str, report: MpiReport) -> Iterator[Finding]:
    if report.error:
        advice = "HOROVOD_MPI_LIBRARY names another one; without HOROVOD_CPU_OPERATIONS=mpi jobs do not need it"
        yield Finding(WARN, "MPI", host, report.error, advice)
    elif report.level in _LOW:
        text = f"{report.version} grants {report.level} only, so one thread makes all calls: two wake-ups an operation"
        yield Finding(WARN, "MPI", host, text, "an MPI that was built with MPI_THREAD_MULTIPLE")
    elif report.level:
        yield Finding(OK, "MPI", host, "it begins")


def check_if_selected(environ: Mapping[str, str], results: Sequence[HostResult]) -> Iterator[Finding]:
    """If the launcher's environment selects MPI for the job, check that each host has MPI."""
    if environ.get(_OPERATIONS, "").strip().lower() != "mpi":
        return
    for answer in results:
        if answer.report is not None and answer.report.mpi.missing:
            advice = f"install the MPI whose mpirun is to start the job, or leave {_OPERATIONS} at gloo"
            text = f"{_OPERATIONS} is mpi, but {answer.report.mpi.missing}"
            yield Finding(FAIL, "MPI", answer.host, text, advice)


def shown(report: MpiReport) -> str:
    """Describe the MPI library for the table: its name, and whether it works."""
    if not report.path:
        return "-"
    level = "one thread" if report.one_thread else report.level
    what = f"{report.version} ({report.path}, {report.source}), ABI: {report.abi}, {level}"
    if report.error:
        what = f"cannot be used ({report.path}, {report.source})"
    return what
