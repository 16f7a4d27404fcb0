"""Start of an engine from the environment variables, alone or together with other ranks.

The docstring of ``joining`` describes how ranks meet, connect and start, and how failures are handled. Each ``init``
starts a separate epoch. Leftovers of an earlier epoch, whether failed or shut down, cannot be mistaken for part of the
new epoch.
"""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.common.bootstrap import calibration, mpi, shared_memory
from horovod.common.bootstrap.engine_start import Formed, make_engine
from horovod.common.bootstrap.joining import Joining, describe
from horovod.common.bootstrap.peers import check_agreement, make_job, make_plan
from horovod.common.communicators import GivenSet
from horovod.common.contract import notices, reports
from horovod.common.contract.log import make_sink
from horovod.common.contract.notices import sentences, unheard
from horovod.common.contract.settings import LOG_LEVELS, Settings, for_debugging
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.job import Job

if TYPE_CHECKING:
    from horovod._core import Engine


def _warn(env: WorkerEnv, settings: Settings) -> None:
    """Warn about variables without effect, except those about which horovodrun has already warned."""
    if LOG_LEVELS.index(settings.text("HOROVOD_LOG_LEVEL")) > LOG_LEVELS.index("warning"):
        return
    sink = make_sink(env.rank, settings.flag("HOROVOD_LOG_HIDE_TIME"))
    if env.rendezvous_addr is None:
        texts = [*sentences(os.environ), *unheard(os.environ)]
    else:
        texts = notices.misspelt_sentences(notices.of_program(os.environ))
    for text in texts:
        sink(LOG_LEVELS.index("warning"), text)


def start(
    env: WorkerEnv, members: list[int] | None, process_sets: list[GivenSet], dynamic: bool
) -> tuple[Job, "Engine"]:
    """Join the job that ``env`` describes, and start its engine.

    Args:
        env: Environment of this worker.
        members: World rank of each rank of the job. None: all world ranks form the job.
        process_sets: Process sets passed to ``init``, which must be the same on all ranks.
        dynamic: True for dynamic process sets. Must be the same on all ranks.

    Returns:
        The job and its engine.

    Raises:
        ValueError: If the job cannot be formed. The message names the problem or the missing ranks. All descriptors are
            closed.
    """
    settings = for_debugging(Settings.from_environ())
    settings = settings.with_values({reports.VARIABLE: reports.folder_of_job(settings.text(reports.VARIABLE))})
    if env.rank == 0:
        _warn(env, settings)
    dynamic = dynamic or settings.flag("HOROVOD_DYNAMIC_PROCESS_SETS")
    if members is not None and (env.rank not in members or max(members) >= env.size):
        raise ValueError(
            f"comm must be world ranks from 0 to {env.size - 1} that include this process ({env.rank}), got {members}"
        )
    if env.size == 1 or (members is not None and len(members) == 1):
        env.keep_key()
        return _start_alone(env, settings, process_sets, dynamic)
    if members == list(range(env.size)):
        members = None
    if members is None:
        settings = _calibrated(env, settings)
    mpi.begin(env, settings)
    return Joining(env, settings, members, process_sets, dynamic).run()


def _calibrated(env: WorkerEnv, settings: Settings) -> Settings:
    """Return the settings, with tuning values that were calibrated on this host for jobs of this size, if any.

    Only rank 0 loads the values. Other ranks get them from rank 0.
    """
    if env.rank != 0 or settings.text("HOROVOD_TUNING") or not settings.flag("HOROVOD_CALIBRATE"):
        return settings
    transport = settings.text("HOROVOD_TRANSPORT")
    world = calibration.World.here(env.size, env.local_size, env.cross_size, transport)
    tuning, trouble = calibration.load(world)
    if trouble and LOG_LEVELS.index(settings.text("HOROVOD_LOG_LEVEL")) <= LOG_LEVELS.index("warning"):
        make_sink(0, settings.flag("HOROVOD_LOG_HIDE_TIME"))(LOG_LEVELS.index("warning"), trouble)
    return settings.with_values({"HOROVOD_TUNING": tuning})


def _start_alone(
    env: WorkerEnv, settings: Settings, process_sets: list[GivenSet], dynamic: bool
) -> tuple[Job, "Engine"]:
    peer = describe(env, settings, process_sets, dynamic, [], "", [])
    sets = check_agreement([peer])
    formed = Formed({}, [-1, *shared_memory.make_bells(1)])
    job = make_job(0, [env.hostname], [os.getpid()], dynamic, settings.flag("HOROVOD_ELASTIC"))
    job = replace(job, given_sets=sets)
    try:
        return job, make_engine(make_plan(0, [peer]), [peer], formed, settings, env)
    except BaseException:
        formed.close()
        raise
