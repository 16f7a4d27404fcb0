"""Command `horovodrun --explain`, which asks a running job on this host why it is waiting."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence

from horovod.common.contract import kernel, reports
from horovod.runner.base import linux
from horovod.runner.base.job_result import LaunchError

_MARKS = (
    b"HOROVOD_GLOO_RENDEZVOUS_PORT",
    b"MASTER_PORT",
    b"OMPI_MCA_ess_base_jobid",
    b"PMIX_NAMESPACE",
    b"SLURM_JOB_ID",
    b"SLURM_STEP_ID",
)
# Seconds within which the job's answer must arrive. The job needs up to 5 seconds.
_PATIENCE = 15.0
_AGAIN = 0.1  # Seconds between two attempts to connect


def run(target: str) -> str:
    """Ask a job why it is waiting, and return its explanation.

    Args:
        target: Pid of horovodrun or of a rank, the job's report folder, or the working directory of rank 0.

    Raises:
        LaunchError: If no job or more than one job matches, or the job does not respond.
    """
    sockets = reports.sockets()
    pid = _only(target, _genuine(find(target, sorted({claimed for claimed, _ in sockets})), sockets))
    text = b""
    try:
        with _connect(pid, [name for claimed, name in sockets if claimed == pid]) as connection:
            while piece := connection.recv(1 << 16):
                text += piece
    except TimeoutError:
        raise LaunchError(
            f"--explain: rank 0 (pid {pid}) does not answer within {_PATIENCE:g} s: its process is stopped, or "
            f"something holds its Python's lock; `kill -USR2 {pid}` has its stacks written without Python"
        ) from None
    except OSError as error:
        raise LaunchError(f"--explain: rank 0 (pid {pid}) cannot be asked: {error.strerror}") from None
    if not text:
        raise LaunchError(
            f"--explain: rank 0 (pid {pid}) does not answer; it answers only its own user in its own container, and "
            "not while it ends"
        )
    return text.decode(errors="replace")


def _connect(pid: int, names: Sequence[str]) -> socket.socket:
    """Connect to the first socket in `names` that was created by process `pid`.

    The owner of each socket is checked, because any process can create a socket with any name.

    Raises:
        TimeoutError: If the process does not accept the connection.
        LaunchError: If the process created none of the sockets.
    """
    end = time.monotonic() + _PATIENCE
    rejected: dict[str, str] = {}
    while True:
        for name in names:
            if name in rejected:
                continue
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.setblocking(False)
                connection.connect(name)
                if not (reason := _rejection_reason(connection, pid)):
                    connection.settimeout(max(0.1, end - time.monotonic()))
                    return connection
                rejected[name] = reason
            except BlockingIOError:  # The listen backlog is full, so try again.
                pass
            except OSError as error:
                rejected[name] = str(error.strerror)
            connection.close()
        if len(rejected) == len(names):
            raise LaunchError(
                f"--explain: what answers for rank 0 (pid {pid}) is not that process, but "
                f"{', '.join(sorted(set(rejected.values())))}; its text is not shown"
            )
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(_AGAIN)


def _genuine(found: Sequence[int], sockets: Sequence[tuple[int, str]]) -> Sequence[int]:
    """Return the pids in `found` whose process really created the socket that has its pid in its name.

    If no process did, return all pids. The check is needed because any process can create a socket whose name contains
    another process's pid.
    """
    if len(found) < 2:
        return found
    return [pid for pid in found if any(_is_owner(pid, name) for claimed, name in sockets if claimed == pid)] or found


def _is_owner(pid: int, name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect(name)
        except OSError:
            return False
        return not _rejection_reason(connection, pid)


def _rejection_reason(connection: socket.socket, pid: int) -> str:
    """Describe the peer if it is not process `pid` with that process's user id. Otherwise, return an empty string."""
    there, user, _ = kernel.peer_credentials(connection)
    if there == pid and user == _user_of(pid):
        return ""
    return f"process {there} of user {user}" if there else f"a process of user {user} in another container"


def _user_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
            return next(int(line.split()[2]) for line in lines if line.startswith("Uid:"))
    except (OSError, StopIteration):
        return None


def find(target: str, pids: Sequence[int]) -> list[int]:
    """Return the pids of the processes in `pids` that belong to the job that the user named.

    Args:
        target: Pid or folder that identifies the job.
        pids: Pids of the processes that have an `--explain` socket.

    Raises:
        LaunchError: If ``target`` is neither a pid nor a folder.
    """
    if os.path.isdir(target):
        pid = reports.process_of(target)
        if pid is not None:
            return [one for one in pids if one == pid]
        return [one for one in pids if _folder_of(one) == os.path.realpath(target)]
    if not target.isdecimal() or int(target) == 0:
        raise LaunchError(f"--explain must be the number of a process or a folder, got {target!r}")
    pid = int(target)
    family = {pid, *linux.descendants(pid)}
    marks = _marks_of(pid)
    return [one for one in pids if one in family] or [one for one in pids if marks and _marks_of(one) == marks]


def _only(target: str, found: Sequence[int]) -> int:
    if not found:
        raise LaunchError(
            f"--explain {target}: no job found on this host; give the process number of horovodrun or of a rank, or "
            "the job's report or working folder, on the host of rank 0, after it has called hvd.init()"
        )
    if len(found) > 1:
        raise LaunchError(
            f"--explain {target}: several jobs found, with rank 0 as processes "
            f"{', '.join(map(str, found))}; give one of these"
        )
    return found[0]


def _folder_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _marks_of(pid: int) -> dict[bytes, bytes]:
    """Return the environment variables that identify the job of a rank.

    The result is empty if the process is not a rank.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            variables = dict(entry.partition(b"=")[::2] for entry in environ.read().split(b"\0"))
    except OSError:
        return {}
    return {name: variables[name] for name in _MARKS if name in variables}
