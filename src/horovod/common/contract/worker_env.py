"""Environment variables that describe a worker's rank in the job and its connection to it.

These variables are the only interface between launcher and engine. A worker without them uses the variables of another
launcher (``launchers``). If those are missing as well, the worker is rank 0 of a job with one process.

The job key authenticates every connection inside the job. It consists of 32 random bytes and is created per job.
horovodrun passes it as an inherited, sealed memfd (HOROVOD_KEY_FD) or in a file that only its owner can read
(HOROVOD_KEY_FILE). The key itself is never in the environment or in argv. If both variables are set, the worker uses
the file if it did not inherit the descriptor. For example, a Python wrapper can start the training script with
subprocess, which closes descriptors. ``/proc/<launcher's pid>/fd/<n>`` of the memfd is also such a file. After a
process has read the descriptor, programs that it starts do not inherit it, and forked children close it.

Under other launchers, a user can provide a key in a file, or as 64 hexadecimal digits in HOROVOD_JOB_KEY, which all
processes inherit. A process that has read the variable removes it from its environment, so that children do not get it.
"""

import binascii
import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace

from horovod.common import launchers
from horovod.common.contract import kernel, membership
from horovod.common.contract.private_files import Secret
from horovod.common.launchers import Place

KEY_BYTES = 32

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

WORKER = "HOROVOD_WORKER"
TORCH_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
"""Variables of torch.distributed that the launcher sets in workers of a job of fixed size."""
_JOB_KEY = "HOROVOD_JOB_KEY"
# The key from HOROVOD_JOB_KEY, if this process has read it.
_stored_key: list[Secret] = []
# File descriptors from which this process has already read a key, with the device and inode of each.
_read: dict[int, tuple[int, int]] = {}


@dataclass(frozen=True)
class WorkerEnv:
    """One worker's ranks in the job, and the addresses and keys that it needs to reach the other workers."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    hostname: str = "localhost"
    """Identity of the host. Ranks with the same value are local to each other."""
    rendezvous_addr: str | None = None
    """Address of the job's StoreServer, or None for a job of one process."""
    rendezvous_port: int | None = None
    controller: str = "gloo"
    cpu_operations: str = "gloo"
    key_fd: int | None = None
    key_file: str | None = None
    worker: int | None = None
    """Number with which this process of an elastic job requests a rank in each epoch from the launcher.

    The fields above then describe the last assignment, or the expected one. None means that the job is not elastic.
    """
    epoch: int = 0
    """Epoch of this process's last assignment, or 0 if it has had none yet."""
    place: Place | None = None
    """Rank and sizes according to another launcher.

    The local and cross ranks are assumptions until all ranks have exchanged their host names.
    """

    def __post_init__(self) -> None:
        _check_index("HOROVOD_RANK", self.rank, "HOROVOD_SIZE", self.size)
        _check_index("HOROVOD_LOCAL_RANK", self.local_rank, "HOROVOD_LOCAL_SIZE", self.local_size)
        _check_index("HOROVOD_CROSS_RANK", self.cross_rank, "HOROVOD_CROSS_SIZE", self.cross_size)
        if self.local_size > self.size:
            raise ValueError(f"HOROVOD_LOCAL_SIZE must be at most HOROVOD_SIZE ({self.size}), got {self.local_size}")
        if self.rendezvous_port is not None and not 1 <= self.rendezvous_port <= 65535:
            raise ValueError(f"HOROVOD_GLOO_RENDEZVOUS_PORT must be from 1 to 65535, got {self.rendezvous_port}")
        if (self.rendezvous_addr is None) != (self.rendezvous_port is None):
            raise ValueError(
                "HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_GLOO_RENDEZVOUS_PORT must be set together, got "
                f"{self.rendezvous_addr!r} and {self.rendezvous_port!r}"
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "WorkerEnv":
        """Read a worker's rank, host and rendezvous address from an environment. Default: this process's environment.

        Raises:
            ValueError: If a variable is invalid, or if there are several processes but no rendezvous address. The
                message names the variable, its value and the accepted values.
        """
        env = os.environ if environ is None else environ
        place = launchers.find(env)
        numbers = _own_numbers(env) if place is None or place.size == 1 else _launcher_numbers(place)
        worker_env = cls(
            **numbers,
            hostname=env.get("HOROVOD_HOSTNAME") or (place and (place.hostname or host_name())) or "localhost",
            rendezvous_addr=env.get("HOROVOD_GLOO_RENDEZVOUS_ADDR") or None,
            rendezvous_port=_port(env),
            controller=_choice(env, "HOROVOD_CONTROLLER", "gloo", ("gloo", "mpi")),
            cpu_operations=_choice(env, "HOROVOD_CPU_OPERATIONS", "gloo", ("gloo", "mpi", "ccl")),
            key_fd=_integer(env, "HOROVOD_KEY_FD", 0) if env.get("HOROVOD_KEY_FD") else None,
            key_file=env.get("HOROVOD_KEY_FILE") or None,
            worker=_integer(env, WORKER, 0) if env.get(WORKER) else None,
            place=place,
        )
        worker_env._check_launch()
        return worker_env

    def _check_launch(self) -> None:
        if self.place is None and self.size > 1 and self.rendezvous_addr is None:
            raise ValueError(
                f"HOROVOD_SIZE is {self.size} but HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_GLOO_RENDEZVOUS_PORT are "
                "not set, so the "
                f"workers cannot find one another; start them with 'horovodrun -np {self.size} ...', or unset "
                "HOROVOD_SIZE to run alone"
            )
        if self.place is None and self.size > 1 and self.key_fd is None and self.key_file is None:
            raise ValueError(
                f"HOROVOD_SIZE is {self.size} but neither HOROVOD_KEY_FD nor HOROVOD_KEY_FILE gives the job's key; "
                f"start the workers with 'horovodrun -np {self.size} ...'. If another launcher has set HOROVOD_SIZE, "
                "let it set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT instead, and for all the same key in "
                "HOROVOD_JOB_KEY"
            )
        # HOROVOD_CONTROLLER=mpi is accepted only in jobs that MPI started (bootstrap/mpi.py). Even there, ranks
        # negotiate operations over the engine's own links.
        if self.controller == "mpi" and not (self.place is not None and self.place.mpi):
            raise ValueError(f"HOROVOD_CONTROLLER must be 'gloo' in this build, got {self.controller!r}")

    def to_environ(self) -> dict[str, str]:
        """Return the environment variables from which ``from_environ`` recreates this object.

        A child process must inherit the key's descriptor under the same number.
        """
        variables = {
            "HOROVOD_RANK": str(self.rank),
            "HOROVOD_SIZE": str(self.size),
            "HOROVOD_LOCAL_RANK": str(self.local_rank),
            "HOROVOD_LOCAL_SIZE": str(self.local_size),
            "HOROVOD_CROSS_RANK": str(self.cross_rank),
            "HOROVOD_CROSS_SIZE": str(self.cross_size),
            "HOROVOD_HOSTNAME": self.hostname,
            "HOROVOD_CONTROLLER": self.controller,
            "HOROVOD_CPU_OPERATIONS": self.cpu_operations,
        }
        if self.worker is not None:
            variables[WORKER] = str(self.worker)
        if self.rendezvous_addr is not None:
            variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = self.rendezvous_addr
            variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(self.rendezvous_port)
        if self.key_fd is not None:
            variables["HOROVOD_KEY_FD"] = str(self.key_fd)
        if self.key_file is not None:
            variables["HOROVOD_KEY_FILE"] = self.key_file
        return variables

    def with_place(self, place: membership.Place) -> "WorkerEnv":
        """Return a copy updated with the ranks and sizes that the launcher assigned to this worker for an epoch."""
        return replace(
            self,
            rank=place.rank,
            size=place.size,
            local_rank=place.local_rank,
            local_size=place.local_size,
            cross_rank=place.cross_rank,
            cross_size=place.cross_size,
            epoch=place.epoch,
        )

    def job_key(self) -> Secret:
        """Read the job's key from a descriptor or a file.

        Raises:
            ValueError: If the key cannot be read. The message names the variable and the problem, never the key.
        """
        if self.key_fd is not None:
            try:
                return read_key_fd(self.key_fd)
            except ValueError:
                if self.key_file is None:
                    raise
        if self.key_file is not None:
            return read_key_file(self.key_file)
        raise ValueError(
            "neither HOROVOD_KEY_FD nor HOROVOD_KEY_FILE is set, so the job has no key; start it with horovodrun"
        )

    def keep_key(self) -> None:
        """Stop child programs from inheriting the key's descriptor."""
        take_job_key()
        if self.key_fd is not None:
            with contextlib.suppress(ValueError):  # a wrapper program may have closed the descriptor
                read_key_fd(self.key_fd)

    def user_key(self) -> Secret | None:
        """Return the key that the user provides for a job of another launcher, or None.

        Also removes HOROVOD_JOB_KEY from this process's environment.

        Raises:
            ValueError: If the key is invalid. The message names the variable and the problem, never the key.
        """
        take_job_key()
        if self.key_file is not None:
            return read_key_file(self.key_file)
        return _stored_key[0] if _stored_key else None


def carried_by_mpi(environ: Mapping[str, str]) -> bool:
    """Return True if this process belongs to a multi-process job that communicates over MPI.

    Raises:
        ValueError: If a launcher's variables are invalid.
    """
    if environ.get("HOROVOD_CPU_OPERATIONS", "").strip().lower() != "mpi":
        return False
    place = launchers.find(environ)
    return place is not None and place.size > 1


def take_job_key() -> None:
    """Move HOROVOD_JOB_KEY from this process's environment into memory. Raises ValueError if it is invalid."""
    if _JOB_KEY not in os.environ:
        return
    text = Secret(os.environb.pop(_JOB_KEY.encode()).strip())
    if not re.fullmatch(rb"[0-9a-fA-F]{%d}" % (2 * KEY_BYTES), text):
        raise ValueError(
            f"{_JOB_KEY} must be {2 * KEY_BYTES} hexadecimal digits, as 'openssl rand -hex {KEY_BYTES}' makes them, "
            f"got {len(text)} characters"
        )
    _stored_key[:] = [Secret(binascii.unhexlify(text))]


def host_name() -> str:
    """Return this host's name, for use if neither the user nor the launcher specifies one."""
    return os.uname().nodename or "localhost"


def _own_numbers(env: Mapping[str, str]) -> dict[str, int]:
    return {
        "rank": _integer(env, "HOROVOD_RANK", 0),
        "size": _integer(env, "HOROVOD_SIZE", 1),
        "local_rank": _integer(env, "HOROVOD_LOCAL_RANK", 0),
        "local_size": _integer(env, "HOROVOD_LOCAL_SIZE", 1),
        "cross_rank": _integer(env, "HOROVOD_CROSS_RANK", 0),
        "cross_size": _integer(env, "HOROVOD_CROSS_SIZE", 1),
    }


def _launcher_numbers(place: Place) -> dict[str, int]:
    """Return the ranks and sizes of a process, assuming equally many processes on each host, in rank order.

    This can be verified only once all ranks have exchanged their host names.
    """
    local_size = min(place.local_size or 1, place.size)
    hosts = -(-place.size // local_size)
    return {
        "rank": place.rank,
        "size": place.size,
        "local_rank": min(place.local_rank or 0, local_size - 1),
        "local_size": local_size,
        "cross_rank": place.rank // local_size,
        "cross_size": hosts,
    }


def make_key() -> Secret:
    """Create a random key for a new job."""
    return Secret(secrets.token_bytes(KEY_BYTES))


def make_key_fd(key: bytes) -> int:
    """Create a sealed memfd that contains the key, and return its descriptor.

    Any number of workers can inherit the descriptor (``pass_fds``). The caller closes it.

    Raises:
        OSError: If the memfd cannot be created.
    """
    fd = kernel.create_memory_file("horovod-key")
    try:
        os.write(fd, key)
        # Other processes can open /proc/<pid>/fd/<n> (HOROVOD_KEY_FILE), so restrict access to this user.
        os.fchmod(fd, 0o600)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def path_of_descriptor(pid: int, fd: int) -> str:
    """Return the path in /proc through which other processes of this user can open the descriptor."""
    return f"/proc/{pid}/fd/{fd}"


def is_path_of_descriptor(path: str) -> bool:
    """Return True if the path has the form that ``path_of_descriptor`` returns."""
    return re.fullmatch(r"/proc/\d+/fd/\d+", path) is not None


def read_key_fd(fd: int) -> Secret:
    """Read the key from a memfd created by ``make_key_fd``.

    The descriptor stays open, and its offset does not change. Programs that this process starts later do not inherit
    the descriptor, because they might run as another user.

    Raises:
        ValueError: If the descriptor is not a memfd with a key.
    """
    try:
        # An unsealed file is not the key's memfd: that was closed, and its descriptor number has been reused.
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
        key = Secret(os.pread(fd, KEY_BYTES + 1, 0))
    except OSError as error:
        raise ValueError(
            "HOROVOD_KEY_FD must be the descriptor of a sealed memfd inherited from the launcher, got "
            f"{fd} ({error.strerror}). A program between launcher and worker may have closed it; set HOROVOD_KEY_FILE "
            "instead"
        ) from None
    if not sealed or len(key) != KEY_BYTES:
        raise ValueError(
            f"HOROVOD_KEY_FD must be a sealed memfd of {KEY_BYTES} bytes inherited from the launcher, got {fd}"
        )
    os.set_inheritable(fd, False)
    found = os.fstat(fd)
    _read[fd] = found.st_dev, found.st_ino
    return key


def forget_keys() -> None:
    """Close the key descriptors in a forked child, which is not in the job. Copies of the key in memory remain."""
    for fd, identity in _read.items():
        with contextlib.suppress(OSError):
            found = os.fstat(fd)
            # Close only the key's memfd, because its descriptor number might have been reused.
            if (found.st_dev, found.st_ino) == identity:
                os.close(fd)
    _read.clear()
    _stored_key.clear()


def read_key_file(path: str, variable: str = "HOROVOD_KEY_FILE") -> Secret:
    """Read the key from a file of 32 bytes or 64 hexadecimal digits.

    The file must belong to this user or root, and other users must not have access to it.

    Args:
        path: Path of the file.
        variable: Variable that contains the path, for error messages.

    Raises:
        ValueError: If the file is invalid. The message names the variable.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ValueError(f"{variable} is {path!r}, which cannot be opened: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o077:
            raise ValueError(
                f"{variable} must be a regular file of this user with mode 0600 or stricter, got {path!r} (owner "
                f"{found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})"
            )
        key = Secret(os.read(fd, 4 * KEY_BYTES))
    finally:
        os.close(fd)
    if len(key) == KEY_BYTES:
        return key
    digits = Secret(key.strip())
    if not re.fullmatch(rb"[0-9a-fA-F]{%d}" % (2 * KEY_BYTES), digits):
        raise ValueError(
            f"{variable} must be a file of exactly {KEY_BYTES} bytes or {2 * KEY_BYTES} hexadecimal digits, got "
            f"{path!r} of {found.st_size} bytes"
        )
    return Secret(binascii.unhexlify(digits))


def _check_index(name: str, value: int, size_name: str, size: int) -> None:
    if size < 1:
        raise ValueError(f"{size_name} must be 1 or more, got {size}")
    if not 0 <= value < size:
        raise ValueError(f"{name} must be from 0 to {size - 1} ({size_name} is {size}), got {value}")


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} must be an integer, got {text!r}") from None
    if value < 0:
        raise ValueError(f"{name} must be 0 or more, got {value}")
    return value


def _port(env: Mapping[str, str]) -> int | None:
    text = env.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    return None if text in (None, "", "-1") else _integer(env, "HOROVOD_GLOO_RENDEZVOUS_PORT", 0)


def _choice(env: Mapping[str, str], name: str, default: str, accepted: tuple[str, ...]) -> str:
    text = env.get(name) or default
    if text.lower() not in accepted:
        raise ValueError(f"{name} must be one of {', '.join(accepted)}, got {text!r}")
    return text.lower()
