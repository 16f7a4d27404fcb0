"""Detection of processes that a rank has started and that try to join the job as that rank.

A process started by a rank inherits the environment variables that identify the rank. Data loader workers that use
multiprocessing's "spawn" or "forkserver" import the training script again. With ``hvd.init()`` at its top level, they
would join as ranks: such a process would answer in place of the rank, or wait for the others. Why they get an error:
docs/adr/0017-descendants-of-ranks.md.

A process that has joined is marked in two ways. A variable in its environment reaches all processes that it starts
later, even those that lose their parents. The name of a file descriptor reaches processes that were started before
(such as a fork server) or got an older environment. The mark names the job, so a rank may start another job whose
processes may join that one.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator

from horovod.common.contract.reasons import PIPE, Refused, Teller
from horovod.common.contract.worker_env import WorkerEnv

MARK = "HOROVOD_RANK_PROCESS"
"""Value: <pid of the rank>:<id of its place in its job>."""
_NAME = "horovod-rank-"
_MEMFD = re.compile(r"/memfd:" + _NAME + r"([0-9a-f]+) \(deleted\)")

_held: list[int] = []  # descriptor with the name, once it exists


def check(env: WorkerEnv) -> None:
    """Raise ValueError, with what to do, if this process descends from the rank that ``env`` describes.

    The refusal is also reported to the launcher. When helper processes fail, the rank may only report that they ended.
    """
    if env.size == 1 and env.worker is None:
        return
    place = _place(env)
    rank = _marked(place) or next((pid for pid in _ancestors() if place in _names(pid)), None)
    if rank is None or rank == os.getpid():
        return
    teller = Teller(os.environ.get(PIPE, ""))
    teller.tell(Refused(env.rank))
    teller.close()
    variables = "HOROVOD_RANK, HOROVOD_SIZE, ..." if env.place is None else f"those of {env.place.launcher}"
    raise ValueError(
        f"init: this process (pid {os.getpid()}) was started by rank {env.rank} (pid {rank}) and is no rank itself, so "
        "it cannot join the job. A data loader's worker or another helper that multiprocessing starts by 'spawn' or "
        "'forkserver' imports the script again: put hvd.init() and all that trains below "
        '`if __name__ == "__main__":`. A program that is to run by itself has to be started without the job\'s '
        f"variables ({variables})"
    )


def mark(env: WorkerEnv) -> None:
    """Mark this process as the rank that ``env`` describes."""
    if env.size == 1 and env.worker is None:
        return
    place = _place(env)
    os.environ[MARK] = f"{os.getpid()}:{place}"
    while _held:
        os.close(_held.pop())
    _held.append(os.memfd_create(_NAME + place, os.MFD_CLOEXEC))


def _place(env: WorkerEnv) -> str:
    """Return an id that is equal for all processes with the rank's variables, and different in another job."""
    job = (env.place.launcher, env.place.job) if env.place is not None else (env.rendezvous_addr, env.rendezvous_port)
    who = (env.rank, env.size) if env.worker is None else ("worker", env.worker)  # ranks change in elastic jobs
    return hashlib.sha256(repr((*who, *job)).encode()).hexdigest()[:16]


def _marked(place: str) -> int | None:
    pid, _, named = os.environ.get(MARK, "").partition(":")
    return int(pid) if named == place and pid.isdecimal() else None


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The second field is the command's name in parentheses, which may contain any character.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:  # the process has ended
            return
        yield pid


def _names(pid: int) -> set[str]:
    """Return the place ids in the names of the process's descriptors; empty if these cannot be read."""
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed in the meantime
                if match := _MEMFD.fullmatch(os.readlink(f"/proc/{pid}/fd/{number}")):
                    found.add(match[1])
    return found
