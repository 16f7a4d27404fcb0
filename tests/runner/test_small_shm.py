"""Jobs where /dev/shm is small, read-only or missing, as in containers.

Ranks still share memory, because Horovod's shared memory has no name in a file system.
"""

import subprocess
import sys

import pytest

from tests.runner.launching import launcher, marked_environment, processes_with

PROGRAM = """
import horovod.numpy as hvd, numpy as np
hvd.init()
for size in (1, 1 << 10, 1 << 21):
    total = hvd.allreduce(np.full(size, hvd.rank() + 1.0), op=hvd.Sum)
    assert (total == 3.0).all(), total
with open("/proc/self/maps") as maps:
    print("shared" if "memfd:horovod-segment" in maps.read() else "apart", hvd.rank(), flush=True)
"""
DEVICES = "for each in null zero urandom tty; do touch $0/$each && mount --bind /dev/$each $0/$each; done"
PLACES = {
    "64 KiB": "mount -t tmpfs -o size=64k none /dev/shm",
    "read-only": "mount -t tmpfs -o ro none /dev/shm",
    "none": f"mount -t tmpfs -o size=1m none $0 && {DEVICES} && mount --move $0 /dev && ! test -e /dev/shm",
}


@pytest.mark.parametrize(
    "place", [*(pytest.param(p, marks=pytest.mark.heavy) for p in ("64 KiB", "read-only")), "none"]
)
def test_a_job_shares_memory(place, tmp_path):
    env = marked_environment({"TMPDIR": str(tmp_path)})
    elsewhere = tmp_path / "dev"
    elsewhere.mkdir()
    script = f'{PLACES[place]} && exec "$@"'
    command = [
        "unshare",
        "-m",
        "sh",
        "-c",
        script,
        str(elsewhere),
        *launcher(["-np", "2", sys.executable, "-c", PROGRAM]),
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
    if done.returncode and ("unshare: " in done.stderr or "mount: " in done.stderr):
        pytest.skip(f"a file system cannot be mounted: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:shared 0", "[1]<stdout>:shared 1"]
    assert done.stderr == ""
    assert processes_with(env["HVD_TEST_MARK"]) == []
