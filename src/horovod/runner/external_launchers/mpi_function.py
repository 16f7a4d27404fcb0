"""Function calls of `horovod.run` on workers that mpirun starts. Such workers cannot inherit file descriptors.

The function and the results are files in a folder that only this user can access. If all workers run on this host, it
is a temporary folder. If not, it is a folder in the current directory, which all hosts must share.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from horovod.runner.base.job_result import JobResult
from horovod.runner.base.signals import SignalQueue
from horovod.runner.external_launchers import mpi
from horovod.runner.function import outcome
from horovod.runner.function.worker import FOLDER, FUNCTION, result_name
from horovod.runner.output.output import OutputSink
from horovod.runner.plan import hosts
from horovod.runner.plan.settings import LaunchSettings


def run(
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
        result = mpi.run_job(dataclasses.replace(settings, variables=variables), environ, signals, output)
        left = {slot.rank: folder / result_name(slot.rank) for slot in settings.slots}
        result.results = {rank: bytearray(path.read_bytes()) for rank, path in left.items() if path.exists()}
        if result.exit_code != 0 and result.failed_rank is None:
            result.failed_rank = _first_to_fail(result.results, left)
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _first_to_fail(results: Mapping[int, bytearray], left: Mapping[int, Path]) -> int | None:
    """Return the rank that was the first to write an exception. mpirun does not always report the failed rank."""
    failed = [rank for rank, data in results.items() if (found := outcome.describe(data)) and found.kind == "exception"]
    return min(failed, key=lambda rank: left[rank].stat().st_mtime_ns, default=None)
