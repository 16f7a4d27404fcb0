"""Start an engine from environment variables, for single-rank, static and elastic jobs.

The docstring of ``joining`` describes how ranks meet, connect and start, and how failures are handled. Each ``init``
starts a separate epoch. Leftovers of an earlier epoch, whether failed or shut down, cannot be mistaken for part of the
new epoch.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from horovod._version import __version__
from horovod.common.bootstrap import calibration, engine_start, mpi
from horovod.common.bootstrap.engine_start import Formed, make_engine
from horovod.common.bootstrap.errors import NotFormedError
from horovod.common.bootstrap.joining import Joining, describe
from horovod.common.bootstrap.listening import Listening, lost_workers
from horovod.common.bootstrap.peers import check_agreement, make_job, make_plan
from horovod.common.communicators import SetSpec
from horovod.common.contract import notices, reports
from horovod.common.contract.log import make_sink
from horovod.common.contract.membership import Facts, Place, decode_place, encode
from horovod.common.contract.notices import sentences, unheard
from horovod.common.contract.settings import LOG_LEVELS, Settings, for_debugging
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.elastic.updates import notification_manager, sync_state
from horovod.common.exceptions import NoPlaceError
from horovod.common.frontends import Job
from horovod.common.store.client import StoreClient, StoreError, StoreRefused, StoreTimeout

if TYPE_CHECKING:
    from horovod._core import Engine


def _warn(env: WorkerEnv, settings: Settings) -> None:
    """Warn about variables that have no effect, unless horovodrun has already warned about them."""
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
    env: WorkerEnv, members: list[int] | None, process_sets: list[SetSpec], dynamic: bool
) -> tuple[Job, "Engine"]:
    """Join the job that ``env`` describes, and start its engine.

    Args:
        env: Environment of this worker.
        members: World rank of each rank of the job. None means that all world ranks form the job.
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
    """Return the settings, plus any tuning values calibrated on this host for this job size.

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
    env: WorkerEnv, settings: Settings, process_sets: list[SetSpec], dynamic: bool
) -> tuple[Job, "Engine"]:
    peer = describe(env, settings, process_sets, dynamic, [], "", [])
    sets = check_agreement([peer])
    formed = Formed({}, [-1, *engine_start.make_bells(1)])
    job = make_job(0, [env.hostname], [os.getpid()], dynamic, settings.flag("HOROVOD_ELASTIC"))
    job = replace(job, requested_sets=sets)
    try:
        return job, make_engine(make_plan(0, [peer]), [peer], formed, settings, env)
    except BaseException:
        formed.close()
        raise


# The code below joins an elastic job. ``init`` requests a rank from the launcher, and then forms the epoch with the
# other workers. If that fails because a worker is gone, ``init`` requests a new rank. ``listening`` handles later
# events.

_GRACE = 60.0  # seconds to wait for the launcher's answer in addition to HOROVOD_ELASTIC_TIMEOUT

# Last assignment from the launcher, kept even if this process never joined a running job in that epoch.
_last: Place | None = None
_listening: Listening | None = None


def join(
    env: WorkerEnv, ended: tuple[str, int] | None, members: list[int] | None, sets: list[SetSpec], dynamic: bool
) -> tuple[WorkerEnv, Job, "Engine"]:
    """Request a rank from the launcher and form the epoch. Retry with new ranks until an epoch is formed.

    Environment variables of this process are updated to match the assigned rank.

    Args:
        env: Environment of this worker.
        ended: Why the previous engine stopped (``Engine.ended``), or None.
        members: Must be None, because the ranks of an elastic job change.
        sets: Process sets passed to ``init``.
        dynamic: True for dynamic process sets.

    Returns:
        The environment with the assigned rank, the job, and its engine.

    Raises:
        NoPlaceError: If the launcher has no slot for this process. The message names the host and the local rank.
        ValueError: If the launcher does not answer, or ``members`` is not None.
        StoreError: If the epoch cannot be formed, and the launcher has not replaced it.
    """
    global _last
    if members is not None:
        raise ValueError(f"comm must be None in an elastic job, whose ranks change, got {members}")
    assert env.worker is not None
    seconds = Settings.from_environ().number("HOROVOD_ELASTIC_TIMEOUT") + _GRACE
    lost = [] if _last is None else lost_workers(ended, _last)
    while True:
        _last = place = _ask(env, seconds, lost)
        lost = []
        placed = env.with_place(place)
        try:
            job, engine = start(placed, None, sets, dynamic)
            if place.size == 1:
                _meet_alone(placed)
        except (ValueError, StoreError) as error:
            if not _is_over(error):
                raise
            continue
        sync_state.peers_in_sync, sync_state.members = place.in_sync, tuple(place.workers)
        os.environ.update(_identity(placed))
        _listen(env, place, engine)
        return placed, replace(job, max_size=place.max_size), engine


def _ask(env: WorkerEnv, seconds: float, lost: list[int]) -> Place:
    assert env.worker is not None
    try:
        with _client(env) as store:
            epoch, facts = (_last.epoch, b"") if _last is not None else (0, encode(_facts()))
            stand = sync_state.in_sync, sync_state.holds
            return decode_place(store.join_next(env.worker, epoch, lost, facts, seconds, *stand))
    except StoreRefused as error:
        raise _no_place(env.hostname, _last, str(error)) from None
    except StoreTimeout as error:
        raise ValueError(f"init: {error}") from None


def _no_place(host: str, last: Place | None, why: str) -> NoPlaceError:
    if last is None:
        error = NoPlaceError(f"init: this process (host {host}) is not let into the job: {why}")
        error.line = f"horovod: a new worker on host {host} is not let into the job: {why}"
    else:
        local = last.local_rank
        error = NoPlaceError(
            f"init: this process (host {host}, local rank {local}) has no place in the job any more: {why}"
        )
        error.line = f"horovod: rank {last.rank} on host {host} leaves the job: {why}"
    return error


def _facts() -> Facts:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        code = "" if program is None else hashlib.sha256(Path(program).read_bytes()).hexdigest()
    except OSError:
        code = ""
    return Facts(__version__, python, "" if program is None else os.path.basename(program), code)


def _client(env: WorkerEnv) -> StoreClient:
    assert env.rendezvous_addr is not None
    assert env.rendezvous_port is not None
    return StoreClient(env.job_key(), env.rendezvous_addr, env.rendezvous_port)


def _is_over(error: Exception) -> bool:
    """Return True if other ranks probably caused the failure, so a retry can succeed."""
    return isinstance(error, (StoreError, NotFormedError))


def _meet_alone(env: WorkerEnv) -> None:
    """Take part in the store's exchanges as the only rank, so that the launcher knows that the epoch has begun."""
    with _client(env) as store:
        number, _ = store.exchange(f"init e{env.epoch}", 0, 1, b"")
        store.exchange(f"formed {number}", 0, 1, b"")


def _identity(env: WorkerEnv) -> Mapping[str, str]:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    return {f"HOROVOD_{name}": env.to_environ()[f"HOROVOD_{name}"] for name in names}


def _listen(env: WorkerEnv, place: Place, engine: "Engine") -> None:
    """Start handling launcher events, and notify the launcher when the engine stops."""
    global _listening
    assert env.worker is not None
    if _listening is None:
        _listening = Listening(env.worker, lambda: _client(env), notification_manager.handle_hosts_updated)
    notification_manager.begin_epoch(place.epoch)
    _listening.begin(place, engine)
