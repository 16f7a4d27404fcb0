"""Ray's ranks where /dev/shm is as small as Docker makes it: Ray takes another folder, ours need none."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

pytest.importorskip("ray")

from tests.ray.conftest import _of_session
from tests.runner.launching import eventually

PROGRAM = """
import sys

import ray

from horovod.ray import RayExecutor


def train():
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    total = hvd.allreduce(np.full(1 << 21, hvd.rank() + 1.0), op=hvd.Sum)
    with open("/proc/self/maps") as maps:
        return float(total.min()), float(total.max()), "memfd:horovod-segment" in maps.read()


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[1], object_store_memory=100 << 20)
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=120), num_workers=2)
    executor.start()
    print(executor.run(train), flush=True)
    executor.shutdown()
    ray.shutdown()
"""


@pytest.mark.heavy
def test_ranks_share_memory_in_a_container_of_docker_s_size(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    with tempfile.TemporaryDirectory(prefix="hvd-ray-", dir="/tmp") as folder:  # short: names of sockets are
        script = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, str(tmp_path / "program.py"), folder]
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        finally:
            for pid in _of_session(folder):
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: not _of_session(folder), 20, "nothing of Ray is left")
    if done.returncode and ("unshare: " in done.stderr or "mount: " in done.stderr):
        pytest.skip(f"a file system cannot be mounted: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[(3.0, 3.0, True), (3.0, 3.0, True)]" in done.stdout
    assert "/dev/shm" in done.stderr, "Ray says that it has taken another folder"
