"""The worker environment contract: what a launcher tells a worker. Launcher and engine meet here and nowhere else.

A worker started without any of it is what another launcher's variables say (``launchers``), and without those rank 0 of
a job of one process.

Job key: 32 random bytes, made per job, that authenticate every connection inside it. From horovodrun it travels as a
sealed memfd inherited by the worker (HOROVOD_KEY_FD) or in a file that only its owner can read (HOROVOD_KEY_FILE),
never in the environment itself or in argv. Both may be given: the file then stands in where the descriptor did not
survive, as when a Python wrapper starts the training script with subprocess, which closes descriptors.
``/proc/<launcher's pid>/fd/<n>`` of the same memfd is such a file. Once read, the descriptor is this process's alone:
programs that it starts do not inherit it, and forked children close it.

Under other launchers a user may give a key: a file, or HOROVOD_JOB_KEY, 64 hexadecimal digits in a variable that all
processes inherit. It is removed from the environment when it has been read, so that children do not get it.
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
from horovod.common.contract import membership, memory_files
from horovod.common.contract.secret import Secret
from horovod.common.launchers.place import Place

KEY_BYTES = 32

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

WORKER = "HOROVOD_WORKER"
_JOB_KEY = "HOROVOD_JOB_KEY"
_taken: list[Secret] = []  # the key that was in HOROVOD_JOB_KEY of this process
_read: dict[int, tuple[int, int]] = {}  # descriptors of keys that this process has read: device and inode of each


@dataclass(frozen=True)
class WorkerEnv:
    """One worker's place in the job and how it finds the others."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    hostname: str = "localhost"
    """Identity of the host: ranks with the same value are local to each other."""
    rendezvous_addr: str | None = None
    """Address of the job's StoreServer; None: a job of one process."""
    rendezvous_port: int | None = None
    controller: str = "gloo"
    cpu_operations: str = "gloo"
    key_fd: int | None = None
    key_file: str | None = None
    worker: int | None = None
    """In an elastic job the number of this process, by which it asks the launcher for its place in each epoch; what is
    above is then its last one, or what was foreseen when it was started. None: the members of the job do not change."""
    epoch: int = 0
    """Of that place; 0: it has had none."""
    place: Place | None = None
    """What another launcher says; local and cross ranks above are then a guess until the ranks have met."""

    def __post_init__(self) -> None:
        _check_index("HOROVOD_RANK", self.rank, "HOROVOD_SIZE", self.size)
        _check_index("HOROVOD_LOCAL_RANK", self.local_rank, "HOROVOD_LOCAL_SIZE", self.local_size)
        _check_index("HOROVOD_CROSS_RANK", self.cross_rank, "HOROVOD_CROSS_SIZE", self.cross_size)
        if self.local_size > self.size:
            raise ValueError(f"HOROVOD_LOCAL_SIZE is {self.local_size}, accepted is at most HOROVOD_SIZE, {self.size}")
        if self.rendezvous_port is not None and not 1 <= self.rendezvous_port <= 65535:
            raise ValueError(f"HOROVOD_GLOO_RENDEZVOUS_PORT is {self.rendezvous_port}, accepted is 1 to 65535")
        if (self.rendezvous_addr is None) != (self.rendezvous_port is None):
            raise ValueError(
                f"HOROVOD_GLOO_RENDEZVOUS_ADDR is {self.rendezvous_addr!r} and HOROVOD_GLOO_RENDEZVOUS_PORT is "
                f"{self.rendezvous_port!r}; accepted is both or neither"
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "WorkerEnv":
        """What the environment (default: this process's) says.

        Raises ValueError naming variable, value and what is accepted; with advice when it speaks of several processes
        but gives no rendezvous.
        """
        env = os.environ if environ is None else environ
        place = launchers.find(env)
        numbers = _ours(env) if place is None or place.size == 1 else _theirs(place)
        made = cls(
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
        made._check_launch()
        return made

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
        # MPI may start the processes, and carry tensors (wiring/mpi.py); what ranks agree on goes over our own links.
        if self.controller == "mpi" and not (self.place is not None and self.place.mpi):
            raise ValueError(
                f"HOROVOD_CONTROLLER is {self.controller!r}, which this build does not have; accepted is 'gloo'"
            )

    def to_environ(self) -> dict[str, str]:
        """The variables that make ``from_environ`` return an equal object; give the key's descriptor to the child
        under its number.
        """
        made = {
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
            made[WORKER] = str(self.worker)
        if self.rendezvous_addr is not None:
            made["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = self.rendezvous_addr
            made["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(self.rendezvous_port)
        if self.key_fd is not None:
            made["HOROVOD_KEY_FD"] = str(self.key_fd)
        if self.key_file is not None:
            made["HOROVOD_KEY_FILE"] = self.key_file
        return made

    def with_place(self, given: membership.Place) -> "WorkerEnv":
        """In the epoch that the launcher has given it a place in."""
        return replace(
            self,
            rank=given.rank,
            size=given.size,
            local_rank=given.local_rank,
            local_size=given.local_size,
            cross_rank=given.cross_rank,
            cross_size=given.cross_size,
            epoch=given.epoch,
        )

    def job_key(self) -> Secret:
        """The job's key. Raises ValueError naming the variable and what is wrong, never the key."""
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
        """Where the key is of no use: programs that this process starts do not inherit it either."""
        take_job_key()
        if self.key_fd is not None:
            with contextlib.suppress(ValueError):  # a program in between has closed it
                read_key_fd(self.key_fd)

    def given_key(self) -> Secret | None:
        """The key that the user gives to a job of another launcher, None without one. Takes HOROVOD_JOB_KEY out of this
        process's environment. Raises ValueError naming the variable and what is wrong, never the key.
        """
        take_job_key()
        if self.key_file is not None:
            return read_key_file(self.key_file)
        return _taken[0] if _taken else None


def carried_by_mpi(environ: Mapping[str, str]) -> bool:
    """Is this a process of a job of several that goes through MPI? Raises ValueError for what cannot be understood."""
    if environ.get("HOROVOD_CPU_OPERATIONS", "").strip().lower() != "mpi":
        return False
    place = launchers.find(environ)
    return place is not None and place.size > 1


def take_job_key() -> None:
    """Takes HOROVOD_JOB_KEY out of this process's environment and remembers it. Raises ValueError when it is no key."""
    if _JOB_KEY not in os.environ:
        return
    text = Secret(os.environb.pop(_JOB_KEY.encode()).strip())
    if not re.fullmatch(rb"[0-9a-fA-F]{%d}" % (2 * KEY_BYTES), text):
        raise ValueError(
            f"{_JOB_KEY} has {len(text)} characters; accepted are {2 * KEY_BYTES} hexadecimal digits, "
            f"as 'openssl rand -hex {KEY_BYTES}' makes them"
        )
    _taken[:] = [Secret(binascii.unhexlify(text))]


def host_name() -> str:
    """This host's name where neither user nor launcher gives one."""
    return os.uname().nodename or "localhost"


def _ours(env: Mapping[str, str]) -> dict[str, int]:
    return {
        "rank": _integer(env, "HOROVOD_RANK", 0),
        "size": _integer(env, "HOROVOD_SIZE", 1),
        "local_rank": _integer(env, "HOROVOD_LOCAL_RANK", 0),
        "local_size": _integer(env, "HOROVOD_LOCAL_SIZE", 1),
        "cross_rank": _integer(env, "HOROVOD_CROSS_RANK", 0),
        "cross_size": _integer(env, "HOROVOD_CROSS_SIZE", 1),
    }


def _theirs(place: Place) -> dict[str, int]:
    """Hosts of equal numbers of processes in order of rank; true or not is known when all have told their host."""
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
    """A new job key."""
    return Secret(secrets.token_bytes(KEY_BYTES))


def make_key_fd(key: bytes) -> int:
    """A sealed memfd with the key, to be inherited by workers (``pass_fds``) any number of times. The caller closes
    it. Raises OSError.
    """
    fd = memory_files.create("horovod-key")
    try:
        os.write(fd, key)
        os.fchmod(fd, 0o600)  # what /proc/<pid>/fd/<n> shows, see the module's docstring
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def path_of_descriptor(pid: int, fd: int) -> str:
    """The file by which processes of this user can open the key that another one has under this descriptor."""
    return f"/proc/{pid}/fd/{fd}"


def is_path_of_descriptor(path: str) -> bool:
    """Is it of the form that ``path_of_descriptor`` makes?"""
    return re.fullmatch(r"/proc/\d+/fd/\d+", path) is not None


def read_key_fd(fd: int) -> Secret:
    """The key in a memfd made by ``make_key_fd``; the descriptor stays open and its offset unmoved, but programs do not
    inherit it any more: one may run as another user."""
    try:
        # Whatever else has this number by now (a descriptor that was closed and given out again) has no seals.
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
        key = Secret(os.pread(fd, KEY_BYTES + 1, 0))
    except OSError as error:
        raise ValueError(
            f"HOROVOD_KEY_FD is {fd}, which is not the job key's descriptor here ({error.strerror}); accepted is a "
            "sealed memfd "
            "inherited from the launcher. A program between launcher and worker may have closed it; set "
            "HOROVOD_KEY_FILE then"
        ) from None
    if not sealed or len(key) != KEY_BYTES:
        raise ValueError(
            f"HOROVOD_KEY_FD is {fd}, accepted is a sealed memfd of {KEY_BYTES} bytes inherited from the launcher"
        )
    os.set_inheritable(fd, False)
    found = os.fstat(fd)
    _read[fd] = found.st_dev, found.st_ino
    return key


def forget_keys() -> None:
    """In a forked child, which is no member of the job: closes the descriptors of keys. What is in memory stays."""
    for fd, identity in _read.items():
        with contextlib.suppress(OSError):
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) == identity:  # else it was closed, and the number is another file's
                os.close(fd)
    _read.clear()
    _taken.clear()


def read_key_file(path: str, variable: str = "HOROVOD_KEY_FILE") -> Secret:
    """The key in a file of 32 bytes, or of 64 hexadecimal digits, that belongs to this user (or root) and that nobody
    else can read. Raises ValueError naming the variable that has its path.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ValueError(f"{variable} is {path!r}, which cannot be opened: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o077:
            raise ValueError(
                f"{variable} is {path!r} (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}); "
                "accepted is a regular "
                "file of this user with mode 0600 or stricter"
            )
        key = Secret(os.read(fd, 4 * KEY_BYTES))
    finally:
        os.close(fd)
    if len(key) == KEY_BYTES:
        return key
    digits = Secret(key.strip())
    if not re.fullmatch(rb"[0-9a-fA-F]{%d}" % (2 * KEY_BYTES), digits):
        raise ValueError(
            f"{variable} is {path!r} of {found.st_size} bytes, accepted are exactly {KEY_BYTES}, or "
            f"{2 * KEY_BYTES} hexadecimal digits"
        )
    return Secret(binascii.unhexlify(digits))


def _check_index(name: str, value: int, size_name: str, size: int) -> None:
    if size < 1:
        raise ValueError(f"{size_name} is {size}, accepted is 1 or more")
    if not 0 <= value < size:
        raise ValueError(f"{name} is {value}, accepted is 0 to {size - 1} ({size_name} is {size})")


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, accepted is an integer") from None
    if value < 0:
        raise ValueError(f"{name} is {value}, accepted is 0 or more")
    return value


def _port(env: Mapping[str, str]) -> int | None:
    text = env.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    return None if text in (None, "", "-1") else _integer(env, "HOROVOD_GLOO_RENDEZVOUS_PORT", 0)


def _choice(env: Mapping[str, str], name: str, default: str, accepted: tuple[str, ...]) -> str:
    text = env.get(name) or default
    if text.lower() not in accepted:
        raise ValueError(f"{name} is {text!r}, accepted are {', '.join(accepted)}")
    return text.lower()
