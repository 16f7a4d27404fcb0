"""Memory and doorbells that the ranks of a node share. The node's leader creates them and sends the descriptors.

The memory (one memfd) and the doorbells (one eventfd per rank) have no names, so nothing is left behind even after
kill -9. The leader sends their descriptors over the authenticated Unix sockets of ``links``.
"""

import array
import errno
import fcntl
import os
import socket
import time
from collections.abc import Mapping, Sequence

from horovod.common.bootstrap.peers import NODE, Link, Plan
from horovod.common.contract.descriptors import MemoryFileError, create_memory_file
from horovod.common.contract.settings import Settings

_BATCH = 200  # number of descriptors per message, below the kernel's limit of 253


def arena_bytes(wanted: int, ranks: int) -> int:
    """Return the size of each rank's arena in bytes, rounded up to whole pages.

    Args:
        wanted: Size in bytes, or -1 for this host's memory divided by ``ranks``. Untouched pages use no memory.
        ranks: Number of ranks on this host.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    if wanted < 0:
        wanted = page * os.sysconf("SC_PHYS_PAGES") // ranks
    return -(-wanted // page) * page


def provide(plan: Plan, links: Mapping[Link, socket.socket], settings: Settings, seconds: float) -> list[int]:
    """Return the descriptors of the shared memory (or -1) and of each local rank's doorbell.

    The node's leader creates memory and doorbells, and sends their descriptors to the other ranks.

    Raises:
        OSError: If a descriptor cannot be created or received. The message names the settings if the memory is too
            large. All descriptors are closed.
    """
    from horovod import _core

    count = len(plan.local)
    if count == 1:
        return [-1, *make_bells(1)]
    if not plan.leads:
        return receive(links[NODE, plan.leader], count + 1, seconds)
    arena, staging = settings.integer("HOROVOD_ARENA_BYTES"), settings.integer("HOROVOD_STAGING_BYTES")
    ring = settings.integer("HOROVOD_RING_BYTES")

    def make_segment(bytes_each: int) -> list[int]:
        whole = _core.segment_bytes(count, staging, ring, arena_bytes(bytes_each, count))
        try:
            return make(whole, count)
        except MemoryFileError:
            raise  # the system forbids in-memory files of any size, so do not suggest a smaller size
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            if bytes_each == -1:  # the user has not requested a size, so continue without shared memory
                return make_segment(0)
            raise OSError(
                error.errno,
                f"{whole} bytes of shared memory for {count} ranks are refused: {error.strerror}; they follow from "
                f"HOROVOD_ARENA_BYTES, which is {arena}, and HOROVOD_STAGING_BYTES, which is {staging}; lower them, or "
                "raise the memory and the limit of file sizes (ulimit -f)",
            ) from None

    made = make_segment(arena)
    try:
        for rank in plan.local_children:
            send(links[NODE, rank], made, seconds)
    except OSError:
        close(made)
        raise
    return made


def make(size: int, ranks: int) -> list[int]:
    """Create a zeroed memfd of ``size`` bytes and ``ranks`` eventfds, and return their descriptors in this order.

    Raises:
        OSError: If the memory or an eventfd cannot be created. All descriptors are closed.
    """
    made: list[int] = []
    try:
        made.append(create_memory_file("horovod-segment"))
        os.ftruncate(made[0], size)
        # Seal the size. If one rank shrank the memory, the other ranks would die of SIGBUS.
        fcntl.fcntl(made[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        made += make_bells(ranks)
    except OSError:
        close(made)
        raise
    return made


def make_bells(ranks: int) -> list[int]:
    """Create one non-blocking eventfd for each rank, and return their descriptors."""
    made: list[int] = []
    try:
        for _ in range(ranks):
            made.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    except OSError:
        close(made)
        raise
    return made


def send(sock: socket.socket, descriptors: Sequence[int], timeout: float) -> None:
    """Send descriptors in batches, each with one byte of data. Raises OSError or TimeoutError on failure."""
    deadline = time.monotonic() + timeout
    for begin in range(0, len(descriptors), _BATCH):
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        socket.send_fds(sock, [b"d"], list(descriptors[begin : begin + _BATCH]))


def receive(sock: socket.socket, count: int, timeout: float) -> list[int]:
    """Receive ``count`` file descriptors sent by ``send``. On OSError or TimeoutError, all of them are closed."""
    deadline = time.monotonic() + timeout
    received: list[int] = []
    try:
        while len(received) < count:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            data, batch, flags = _receive_batch(sock)
            received += batch
            if not data:
                raise ConnectionError(0, "the node's first rank closed the connection")
            if not batch or flags & socket.MSG_CTRUNC:
                raise OSError(0, "descriptors were lost on the way; is the limit of open files (ulimit -n) too low?")
        if len(received) != count:
            raise OSError(0, f"{len(received)} descriptors came instead of {count}")
    except OSError:
        close(received)
        raise
    return received


def _receive_batch(sock: socket.socket) -> tuple[bytes, list[int], int]:
    # Make the descriptors close-on-exec here, because some Python versions ignore the flags of socket.recv_fds.
    batch = array.array("i")
    data, ancillary, flags, _ = sock.recvmsg(1, socket.CMSG_SPACE(_BATCH * batch.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            batch.frombytes(content[: len(content) - len(content) % batch.itemsize])
    return data, batch.tolist(), flags


def close(descriptors: Sequence[int]) -> None:
    """Close these descriptors, skipping -1."""
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)
