"""`--gpus-per-worker` and `--gpu-affinity`: the agent assigns its host's GPUs, and the CPUs near them, to workers."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

import msgspec

from horovod.runner.base.errors import AgentError
from horovod.runner.protocol.messages import StartJob


def with_gpus(job: StartJob, environ: Mapping[str, str], allowed: Collection[int]) -> StartJob:
    """Return the orders with each worker's GPUs and CPUs added, if the job asks for that.

    Args:
        job: Orders of the launcher.
        environ: Environment of the agent; its CUDA_VISIBLE_DEVICES limits the GPUs to assign.
        allowed: CPUs that may be used.

    Raises:
        AgentError: There are too few GPUs, or the CPUs near them are not known.
    """
    if not job.gpus_per_worker and not job.gpu_affinity:
        return job
    # Loaded here because only jobs that assign GPUs need it.
    from horovod.common.devices import affinity, nvml, visible

    survey = nvml.survey()
    workers, count = job.workers, len(job.workers)
    try:
        if job.gpus_per_worker:
            given = visible.cut(environ, survey, count, job.gpus_per_worker)
            workers = [
                msgspec.structs.replace(worker, environment=[*worker.environment, *_encoded(own)])
                for worker, own in zip(workers, given, strict=True)
            ]
        if job.gpu_affinity:
            gpus = visible.of_workers(environ, survey, count, job.gpus_per_worker)
            cpus = [affinity.binding(own, allowed) for own in gpus]
            workers = [msgspec.structs.replace(worker, cpus=own) for worker, own in zip(workers, cpus, strict=True)]
    except visible.VisibleError as error:
        raise AgentError(str(error)) from None
    except affinity.AffinityError as error:
        raise AgentError(f"--gpu-affinity: {error}") from None
    return msgspec.structs.replace(job, workers=workers)


def _encoded(variables: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(os.fsencode(name), os.fsencode(value)) for name, value in variables.items()]
