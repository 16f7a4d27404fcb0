"""Function calls of `horovod.run` on workers that mpirun starts. They cannot inherit descriptors.

The function and the results are files in a folder that only this user can access. It is a temporary folder, or, if
workers run on other hosts, a folder in the current directory, which the hosts must share.
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
    """Run the job. Raises LaunchError if mpirun is missing, OSError if the folder cannot be created."""
    far = not all(hosts.is_local(slot.hostname) for slot in settings.slots)
    folder = Path(tempfile.mkdtemp(prefix=".horovod-run-", dir=os.getcwd() if far else None))  # created with mode 0700
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
    """Return the rank that wrote an exception first, because mpirun does not always name the rank that failed."""
    failed = [rank for rank, data in results.items() if (found := outcome.describe(data)) and found.kind == "exception"]
    return min(failed, key=lambda rank: left[rank].stat().st_mtime_ns, default=None)
