"""Is this process a rank, or was it started by one? What a rank starts inherits the variables that say who it is.

Data loaders' workers by multiprocessing's "spawn" and "forkserver" import the training script again. With hvd.init() at
its top they would join as ranks: a ghost that answers for the rank, or waits for the others. Why they get an error:
docs/adr/0017-descendants-of-ranks.md.

A process that has joined is marked twice: in its environment, which reaches whatever it starts from then on, also what
loses its parents; and by the name of a descriptor, which says so to those that were there before (a fork server) or got
an environment of an earlier time. The mark names the job, so a rank may start another job, and the processes of that
may join it.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator

from horovod.common.contract.reasons import PIPE, Refused, Teller
from horovod.common.contract.worker_env import WorkerEnv

MARK = "HOROVOD_RANK_PROCESS"
"""<pid of the rank>:<name of its place in its job>"""
_NAME = "horovod-rank-"
_MEMFD = re.compile(r"/memfd:" + _NAME + r"([0-9a-f]+) \(deleted\)")

_held: list[int] = []  # the descriptor with the name, once there is one


def check(env: WorkerEnv) -> None:
    """Raises ValueError, with what to do, when this process descends from the rank that ``env`` says it is. The
    launcher hears of it too: when helpers end, a rank may say no more than that they did."""
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
    """This process has joined as the rank that ``env`` says."""
    if env.size == 1 and env.worker is None:
        return
    place = _place(env)
    os.environ[MARK] = f"{os.getpid()}:{place}"
    while _held:
        os.close(_held.pop())
    _held.append(os.memfd_create(_NAME + place, os.MFD_CLOEXEC))


def _place(env: WorkerEnv) -> str:
    """The same for whatever has the rank's variables, and another one in another job."""
    job = (env.place.launcher, env.place.job) if env.place is not None else (env.rendezvous_addr, env.rendezvous_port)
    who = (env.rank, env.size) if env.worker is None else ("worker", env.worker)  # ranks change there
    return hashlib.sha256(repr((*who, *job)).encode()).hexdigest()[:16]


def _marked(place: str) -> int | None:
    pid, _, named = os.environ.get(MARK, "").partition(":")
    return int(pid) if named == place and pid.isdecimal() else None


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The second field is the command's name in parentheses, which may hold anything.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:  # it has ended
            return
        yield pid


def _names(pid: int) -> set[str]:
    """The places that the process's descriptors say it has; none where they cannot be read."""
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if match := _MEMFD.fullmatch(os.readlink(f"/proc/{pid}/fd/{number}")):
                    found.add(match[1])
    return found
