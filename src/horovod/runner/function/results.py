"""Results by rank, or the error, of a `horovod.run` job that has ended."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Mapping
from typing import Any

from horovod.runner.attribution import tracebacks
from horovod.runner.base.errors import OutcomeError
from horovod.runner.base.job_result import JobResult
from horovod.runner.function import outcome
from horovod.runner.function.worker_error import worker_error


def of_elastic(result: JobResult, least: int) -> list[Any]:
    """Return the values of the first `least` ranks of the last epoch. Raises WorkerError."""
    return by_rank(result, dict(sorted(result.hosts.items())[:least]))


def by_rank(result: JobResult, hosts: Mapping[int, str]) -> list[Any]:
    """Return the values of the ranks in `hosts`, which maps each rank to its host. Raises WorkerError."""
    described = {rank: outcome.describe(data) for rank, data in result.results.items()}
    if result.exit_code != 0:
        rank = result.failed_rank
        text, cause = "", None
        message = result.message
        description = described.get(rank) if rank is not None else None
        if rank is not None and description is not None and description.kind == "exception":
            text = description.traceback
            shown = textwrap.indent("\n".join(tracebacks.shortened(text.rstrip().splitlines())), "    ")
            message = f"{result.headline or result.message}\nthe exception of rank {rank}:\n{shown}"
            if description.why:
                lost = f"{description.type_name} cannot be pickled and unpickled: {description.why}"
                message += f"\n(this error is not of its class: {lost})"
            if description.body:
                with contextlib.suppress(OutcomeError):  # the message contains the traceback anyway
                    cause = outcome.load(result.results[rank], description, rank)
        raise worker_error(
            message,
            rank,
            {**result.hosts, **hosts}.get(rank, "") if rank is not None else "",
            result.exit_code,
            text,
            cause,
        )
    values = []
    for rank, host in sorted(hosts.items()):
        description = described.get(rank)
        if description is None:  # the function may have called sys.exit(0) or os._exit(0)
            text = f"rank {rank} on host {host} ended with exit code 0 without a result"
            raise worker_error(text, rank, host, 0)
        try:
            values.append(outcome.load(result.results.pop(rank), description, rank))
        except OutcomeError as error:
            raise worker_error(str(error), rank, host, 0, cause=error) from error
    return values
