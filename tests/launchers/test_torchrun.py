"""Jobs with the variables of torch.distributed: from torchrun, or from a PyTorchJob's pods."""

import os
import socket
import sys
from importlib.util import find_spec

import pytest

from tests.launchers import programs
from tests.launchers.programs import WORKER, Done

KEY = "a7" * 32
TWO_HOSTS = [([0, 1], [0, 2]), ([0, 1], [1, 2])]


def pods(master: str, **variables: str) -> Done:
    """Run two processes with the variables of a PyTorchJob's pods, each as if on its own host."""
    port = 22000 + os.getpid() % 900 * 10  # the store uses the first free port of the eight after it
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": master, "MASTER_PORT": str(port)}
    each = [{**place, "RANK": str(rank), "HOROVOD_HOSTNAME": f"train-worker-{rank}"} for rank in range(2)]
    return programs.finish(programs.start_each(WORKER, [programs.environment(**one, **variables) for one in each]))


def test_pods_with_a_key_in_a_variable():
    done = pods(socket.gethostname(), HOROVOD_JOB_KEY=KEY)
    assert done.places() == TWO_HOSTS
    assert KEY not in done.text


def test_pods_with_a_key_in_a_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(bytes.fromhex(KEY))
    path.chmod(0o400)
    assert pods("localhost", HOROVOD_KEY_FILE=str(path)).places() == TWO_HOSTS


def test_pods_without_a_key_get_advice():
    done = pods("192.0.2.77")
    assert done.code == 1
    for part in ("PyTorchJob started 2 processes", "HOROVOD_KEY_FILE=FILE", "HOROVOD_JOB_KEY=$(openssl rand -hex 32)"):
        assert done.text.count(part) == 2, done.text


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_torchrun():
    options = ["--nproc-per-node", "2", "--master-port", "0", "--no-python"]
    done = programs.run([sys.executable, "-m", "torch.distributed.run", *options, *WORKER, "child:1"])
    assert done.places() == [([0, 2], [0, 1]), ([1, 2], [0, 1])]


@pytest.mark.heavy
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_torchrun_starts_workers_again():
    """The restarted workers are another job, which must not meet leftovers of the first."""
    options = ["--nproc-per-node", "2", "--master-port", "0", "--max-restarts", "1", "--no-python"]
    script = 'test $TORCHELASTIC_RESTART_COUNT = 1 || set -- raise:1; exec "$0" "$W" "$@"'
    command = [sys.executable, "-m", "torch.distributed.run", *options, "bash", "-c", script, sys.executable]
    done = programs.run(command, programs.environment(W=WORKER[1]))
    assert done.code == 0, done.text
    assert done.text.count("ALL_RANKS") == 2
