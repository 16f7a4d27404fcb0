"""Rendezvous of ranks started by a launcher other than horovodrun.

Rank 0 runs the job's store until its process exits. The other ranks need the store's address and the job's
key. Depending on the launcher, one of several ``methods`` provides them, and all ranks use the same method. A key is
always required.
"""

import os
from collections.abc import Callable, Sequence

from horovod.common.contract import kernel
from horovod.common.contract.settings import Settings
from horovod.common.contract.worker_env import WorkerEnv, make_key
from horovod.common.key_exchange import methods, pmi
from horovod.common.key_exchange.methods import Group, Meeting, MeetingError
from horovod.common.key_exchange.search import own_addresses
from horovod.common.launchers import Place
from horovod.common.network.interfaces import parse_ports
from horovod.common.store.sockets import descriptors_for


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


_meetings: dict[tuple[str, tuple[int, ...]], Meeting] = {}


def find_store(env: WorkerEnv, settings: Settings, members: Sequence[int]) -> Meeting:
    """Return the address and key of the store for this process's job.

    horovodrun provides both in the environment. Under another launcher, the ranks use one of the ``methods``.

    Args:
        env: Environment of this worker.
        settings: Settings of this process.
        members: World ranks that form the job. An empty sequence means all ranks.

    Raises:
        ValueError: If the store cannot be found in time, or cannot be started. The message names the problem.
    """
    if env.place is None:
        assert env.rendezvous_addr is not None
        assert env.rendezvous_port is not None
        return Meeting(env.rendezvous_addr, env.rendezvous_port, env.job_key())
    group = Group(
        env.place,
        tuple(members),
        env.user_key(),
        settings.text("HOROVOD_GLOO_IFACE"),
        parse_ports(settings.text("HOROVOD_PORT_RANGE")),
    )
    seconds = settings.number("HOROVOD_START_TIMEOUT")
    try:
        return meet(group, make_key, seconds)
    except (MeetingError, OSError) as error:
        who = f"init: rank {env.rank} (host {env.hostname}), started by {env.place.launcher},"
        if env.rank == group.leader:
            raise ValueError(f"{who} cannot start the job's store: {_reason(error)}") from None
        raise ValueError(
            f"{who} waited {seconds:g} s for rank {group.leader} (of {env.size}) to call hvd.init(): {_reason(error)}; "
            "see the output of that rank, and HOROVOD_START_TIMEOUT if it only needs longer"
        ) from None


def meet(group: Group, fresh_key: Callable[[], bytes], seconds: float) -> Meeting:
    """Find the store of a group of ranks, or start it on rank 0. Later calls for the group reuse the store.

    Args:
        group: The ranks.
        fresh_key: Function that creates a job key.
        seconds: Time limit in seconds.

    Raises:
        ValueError: If no method works with the launcher. The message contains advice. In rank 0's process, also if the
            limit on open files is too low.
        MeetingError: If the store was not found within ``seconds``.
    """
    at = group.place.job, group.members
    if at not in _meetings:
        method = choose(group)
        if group.place.rank == group.leader:
            _make_room(group)
            _meetings[at] = method.lead(group, group.job_key(fresh_key()))
        else:
            _meetings[at] = method.follow(group, seconds)
    return _meetings[at]


def _make_room(group: Group) -> None:
    """Raise the open-file limit, so that all ranks can connect at the same time.

    If the limit is too low for all connection attempts at once, some of them wait and retry.
    """
    addresses = 1 if group.place.one_host else len(own_addresses(group.interface))
    most = (addresses + 1) * group.size  # each rank connects to all addresses at first, and then keeps one connection
    kernel.make_room(descriptors_for(most), descriptors_for(group.size))


def choose(group: Group) -> methods.MeetingMethod:
    """Choose the method with which the ranks of this job find the store and its key.

    Raises:
        ValueError: If no method is possible. The message has advice for the launcher.
    """
    place = group.place
    if place.one_host and place.job:
        return methods.OneHost()
    trouble = ""
    try:
        board = open_board()
        if board is not None:
            return board
    except (pmi.PmiError, pmi.PmixError) as error:
        trouble = f" ({error})"
    if group.user_key is not None and place.leads and place.port:
        return methods.AtPort()
    if place.launcher == "srun" and methods.available():
        return methods.ByMunge()
    alone = f". {place.alone}" if place.alone else ""
    raise ValueError(_advice(place, group.user_key is not None) + trouble + alone)


def open_board() -> methods.OnBoard | None:
    """Return the launcher's key-value store (the board), or None if there is none.

    The board is opened once per process.
    """
    if not _boards:
        if os.environ.get("PMI_FD"):
            _boards.append(methods.OnBoard(pmi.PmiBoard()))
        elif os.environ.get("PMIX_NAMESPACE"):
            _boards.append(methods.OnBoard(pmi.PmixBoard()))
    return _boards[0] if _boards else None


_boards: list[methods.OnBoard] = []


def _advice(place: Place, has_key: bool) -> str:
    who = f"{place.launcher} started {place.size} processes"
    make = "openssl rand -hex 32"
    give = (
        f"give all of them one key: HOROVOD_KEY_FILE=FILE with a file of mode 0600 on a file system that all hosts see "
        f"(umask 077; {make} > FILE), or a variable HOROVOD_JOB_KEY=$({make}) that all inherit"
    )
    if has_key:
        return (
            f"{who}, but nothing tells on which host rank 0 runs: neither PMI_FD nor a PMIx library that can be used; "
            f"start the job with 'horovodrun -np {place.size} ...'"
        )
    if place.launcher == "srun":
        return f"{who} and they have no key for their connections; use 'srun --mpi=pmi2' or '--mpi=pmix', or {give}"
    if place.mpi:
        return (
            f"{who}, but what they could exchange a key with is not there: neither PMI_FD nor a PMIx library that can "
            f"be used; start the job with 'horovodrun -np {place.size} ...' or 'horovodrun --mpi -np {place.size} ...'"
        )
    return f"{who} and they have no key for their connections; {give}"
