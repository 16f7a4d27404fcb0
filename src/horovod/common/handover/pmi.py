"""Board for short texts between the processes of a job, over the wire protocol of PMI-1.

Hydra (MPICH, Intel MPI, MVAPICH), ``srun --mpi=pmi2`` and others implement it. The process manager passes a connected
socket in PMI_FD. A request is a line ``cmd=... name=value ...``, and so is the answer. Published names (publish_name,
lookup_name) are visible to all processes at once. The alternatives put and get need a barrier, in which a missing rank
could not be named.

An MPI library in the same process uses the same socket. So no message is ever left partly read, the socket's flags are
not changed, and the MPI library, if it is in use, sends init and finalize.
"""

import atexit
import base64
import hashlib
import os
import select
import sys
import threading
import time
from collections.abc import Mapping

from horovod.common.handover import mpi

_ANSWER_SECONDS = 10.0
_LONGEST = 4096
MAX_VALUE = 700
"""Maximum bytes of a value: 1024 characters after base64, with a margin for managers that allow less than they say."""


class PmiError(RuntimeError):
    """The process manager does not answer, or not according to PMI-1."""


class PmiBoard:
    """Board over PMI-1. ``publish`` and ``find`` are thread-safe."""

    name = "PMI"

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        """Connect to the process manager. Raises PmiError if PMI_FD is not its socket."""
        text = (os.environ if env is None else env).get("PMI_FD", "")
        if not text.isdecimal():
            raise PmiError(f"PMI_FD must be the number of a descriptor, got {text!r}")
        self._fd = int(text)
        self._lock = threading.Lock()
        if not mpi.is_in_use():
            self._call("init pmi_version=1 pmi_subversion=1")
        self._scope = self._call("get_my_kvsname").get("kvsname", "")
        if not self._scope:
            raise PmiError("the process manager does not tell the name of the job's key-value space")
        _finalize_at_exit(self)

    def publish(self, name: str, value: bytes) -> None:
        """Publish a value of at most MAX_VALUE bytes; each name can be used once. Raises PmiError."""
        text = base64.urlsafe_b64encode(value).decode().rstrip("=")
        answer = self._call(f"publish_name service={self._service(name)} port={text}")
        if not _is_ok(answer):
            raise PmiError(f"the process manager refuses to publish a name: {answer.get('msg', answer)}")

    def find(self, name: str, rank: int) -> bytes | None:
        """Return what ``rank`` has published under this name; None if nothing yet. Does not wait."""
        del rank
        answer = self._call(f"lookup_name service={self._service(name)}")
        text = answer.get("port", "")
        if not _is_ok(answer) or not text:
            return None
        try:
            return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            return None

    def finalize(self) -> None:
        """Tell the process manager that this process may end. Otherwise Hydra treats its end as a crash."""
        self._call("finalize")

    def _service(self, name: str) -> str:
        # Other jobs of a name server may see the names, and keys are limited to 64 characters.
        return "horovod-" + hashlib.sha256(f"{self._scope}/{name}".encode()).hexdigest()[:32]

    def _call(self, command: str) -> dict[str, str]:
        with self._lock:
            try:
                os.write(self._fd, f"cmd={command}\n".encode())
                line = self._read_line()
            except OSError as error:
                raise PmiError(f"the process manager cannot be reached by PMI_FD: {error.strerror}") from None
        return dict(word.partition("=")[::2] for word in line.split())

    def _read_line(self) -> str:
        deadline = time.monotonic() + _ANSWER_SECONDS
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise PmiError(f"no answer from the process manager within {_ANSWER_SECONDS:g} s")
            data = os.read(self._fd, _LONGEST)  # nothing can follow an answer
            if not data or len(line) > _LONGEST:
                raise PmiError("the process manager has closed the connection PMI_FD")
            line += data
        return line.decode(errors="replace")


def _is_ok(answer: Mapping[str, str]) -> bool:
    """Return True for a success. Hydra answers rc=0, Slurm info=ok."""
    return answer.get("rc", "0") == "0" and answer.get("info", "ok") == "ok"


_open: list[PmiBoard] = []


def _finalize_at_exit(board: PmiBoard) -> None:
    if not _open:
        atexit.register(_finalize, os.getpid())
    _open[:] = [board]


def _finalize(pid: int) -> None:
    # After an exception Hydra must see a crash; otherwise it waits for ranks that wait for this one. An MPI library
    # sends finalize itself: MPICH 5 at the end of the process, even long after MPI_Finalize.
    if os.getpid() != pid or hasattr(sys, "last_type") or mpi.was_used():
        return
    try:
        _open[0].finalize()
    except PmiError:
        pass  # the process manager is gone, or finalize was already sent
