"""A job in which one rank reads from a disk that does not answer, and its report."""

import contextlib
import os
import re
import uuid
from pathlib import Path

import pytest

from tests.runner import test_hangs
from tests.runner.launching import eventually

READS = """
if rank == 1:
    with open(GROUP + "/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
    file = os.open(FILE, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(file, 1 << 20, 0)
allreduce("a")
"""


@contextlib.contextmanager
def slow_disk(folder: Path):
    """Create a control group (version 1) that reads 4 kB/s from the folder's disk; skip the test if impossible."""
    group = Path("/sys/fs/cgroup/blkio", f"horovod-{uuid.uuid4().hex[:8]}")
    device = os.stat(folder).st_dev
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no group of processes can be made in /sys/fs/cgroup/blkio")
    try:
        try:
            limit = f"{os.major(device)}:{os.minor(device)} 4000\n"
            (group / "blkio.throttle.read_bps_device").write_text(limit)
        except OSError as error:
            pytest.skip(f"no group of processes can be made in /sys/fs/cgroup/blkio: {error.strerror}")
        yield group
    finally:

        def removed():
            with contextlib.suppress(OSError):
                group.rmdir()
            return not group.exists()

        eventually(removed, 30, "the processes of the group end")


@pytest.mark.heavy
def test_unresponsive_disk(tmp_path):
    data = tmp_path / "data"
    data.write_bytes(os.urandom(4 << 20))
    with data.open("rb") as file:
        os.fsync(file.fileno())
    with slow_disk(tmp_path) as group:
        head = f"GROUP, FILE = {str(group)!r}, {str(data)!r}\n"
        with test_hangs.job(tmp_path, READS, head=head):
            found = test_hangs.reason(tmp_path)
    place = r"at train.py:\d+ \(`os.pread\(file, 1 << 20, 0\)`\)"
    assert re.fullmatch(rf"rank 1 does not go on: it is blocked in I/O \(pread of {data}\), {place}", found), found
