"""`--gpus-per-worker`: the agent gives out the GPUs of its host, for it sees them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from horovod.runner.base.errors import AgentError
from horovod.runner.protocol.messages import StartJob, Worker


def with_gpus(job: StartJob, environ: Mapping[str, str]) -> StartJob:
    """The orders with the variables of each worker's own GPUs, where the job asks for some. `environ`: the agent's; a
    CUDA_VISIBLE_DEVICES in it says which there are to give out.

    Raises AgentError when there are too few.
    """
    if not job.gpus_per_worker:
        return job
    # Only such a job pays for looking.
    from horovod.common.devices import nvml, visible

    try:
        given = visible.cut(environ, nvml.survey(), len(job.workers), job.gpus_per_worker)
    except visible.VisibleError as error:
        raise AgentError(str(error)) from None
    workers = [
        Worker(worker.rank, [*worker.environment, *((os.fsencode(n), os.fsencode(v)) for n, v in own.items())])
        for worker, own in zip(job.workers, given, strict=True)
    ]
    return msgspec.structs.replace(job, workers=workers)
