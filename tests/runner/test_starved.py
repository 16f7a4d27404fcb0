"""Jobs of which one rank has too little memory, or a disk that is slow or does not answer, and what they say of it."""

import contextlib
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.runner import test_hangs
from tests.runner.launching import LIMIT, eventually, run_job

READS = """
group, *files = sys.argv[1:]
files = [os.open(file, os.O_RDONLY) for file in files]

def enter():
    with open(group + "/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))

def read(rank, offset, size):
    os.posix_fadvise(files[rank], 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(files[rank], 0, 0, os.POSIX_FADV_DONTNEED)
    return os.pread(files[rank], size, offset)
"""
HANGS = """
if rank == 1:
    enter()
    read(rank, 0, 1 << 20)
allreduce("a")
"""
SLOW = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset
import horovod.torch as hvd
%s
class Rows(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, i):
        # More than the kernel lets through at once (100 ms of the rate): every step waits, not every third.
        data = read(hvd.rank(), i << 18, 1 << 18)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)[:64].float()

hvd.init()
if hvd.rank() == 1:
    enter()
model = torch.nn.Linear(64, 64)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
for batch in DataLoader(Rows()):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
hvd.shutdown()
"""
SWAPS = """
if rank == 1:
    with open(GROUP + "/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
    much = np.ones(160 << 20, np.uint8)
    where = np.random.default_rng(0)
    while True:
        much[where.integers(0, much.size, 1000)] += 1
allreduce("a")
"""


@contextlib.contextmanager
def cgroup(controller: str, name: str, value: str):
    """A group of processes with this limit, of the first kind of cgroups; its folder."""
    folder = Path("/sys/fs/cgroup", controller, f"horovod-{uuid.uuid4().hex[:8]}")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip(f"no group of processes can be made in /sys/fs/cgroup/{controller}")
    try:
        try:
            (folder / name).write_text(value)
        except OSError as error:
            pytest.skip(f"no group of processes can be made in /sys/fs/cgroup/{controller}: {name}: {error.strerror}")
        yield folder
    finally:

        def removed():
            with contextlib.suppress(OSError):
                folder.rmdir()
            return not folder.exists()

        eventually(removed, 30, "the processes of the group end")


@contextlib.contextmanager
def slow_disk(tmp_path: Path, rate: int):
    """A group whose processes read only so many bytes a second from the disk, and a file there for each rank."""
    files = [tmp_path / name for name in ("data0", "data1")]
    for path in files:
        path.write_bytes(os.urandom(16 << 20))
        with path.open("rb") as file:
            os.fsync(file.fileno())
    device = os.stat(tmp_path).st_dev
    limit = f"{os.major(device)}:{os.minor(device)} {rate}\n"
    with cgroup("blkio", "blkio.throttle.read_bps_device", limit) as group:
        yield [str(group), *map(str, files)]


def test_a_disk_that_does_not_answer(tmp_path):
    with slow_disk(tmp_path, 4000) as arguments:
        head = f"import sys; sys.argv[1:] = {arguments!r}\n"
        with test_hangs.job(tmp_path, READS + HANGS, head=head):
            found = test_hangs.reason(tmp_path)
    assert re.fullmatch(
        rf"rank 1 does not go on: it is blocked in I/O \(pread of {arguments[2]}\), at train.py:\d+ in read "
        r"\(`return os.pread\(files\[rank\], size, offset\)`\)",
        found,
    ), found


@pytest.mark.heavy  # test_slow.py plants the same by waiting
def test_a_slow_disk_of_one_rank(tmp_path):
    pytest.importorskip("torch")
    with slow_disk(tmp_path, 2_000_000) as arguments:
        done = run_job(["-np", "2", sys.executable, "-c", SLOW % READS, *arguments])
    assert done.code == 0, done.err
    assert re.search(
        r"; rank 1 was last in \d+% of steps, by \d+ ms \(it waited \d+ ms longer for its data\); .*; "
        r"rank 1 waited \d+ ms of each step for data\n",
        done.err,
    ), done.err


@pytest.mark.heavy
def test_a_rank_that_swaps(tmp_path):
    """Swaps to a file of its own; other processes have no reason to, as long as there is memory."""
    swap = tmp_path / "swap"
    with swap.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 512 << 20)
    swap.chmod(0o600)
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(cgroup("memory", "memory.limit_in_bytes", str(100 << 20)))
        for command in ("mkswap", "swapon"):
            if subprocess.run([command, str(swap)], capture_output=True, timeout=LIMIT).returncode:
                pytest.skip(f"{command} of a file is not permitted here")
        try:
            with test_hangs.job(tmp_path, SWAPS, head=f"GROUP = {str(group)!r}\n"):
                wanted = "rank 1 does not go on: it swaps: "
                eventually(lambda: wanted in test_hangs.said(tmp_path), LIMIT, wanted)
                text = test_hangs.said(tmp_path)
        finally:
            subprocess.run(["swapoff", str(swap)], check=True, timeout=LIMIT)
    assert re.search(
        r"it swaps: \d+ MiB are swapped out, (and \d+ pages more each second|\d+ pages a second come back), .*; "
        r"it has too little memory\n",
        text,
    ), text
