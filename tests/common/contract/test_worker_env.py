"""The worker environment contract and the job key."""

import os
import subprocess
import sys
import traceback

import pytest

from horovod.common.contract.worker_env import (
    WorkerEnv,
    is_path_of_descriptor,
    make_key,
    make_key_fd,
    path_of_descriptor,
    read_key_fd,
    read_key_file,
)

RENDEZVOUS = {
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
    "HOROVOD_KEY_FD": "9",
}
PAIR = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2", **RENDEZVOUS}


def test_a_job_of_one_without_variables():
    env = WorkerEnv.from_environ({})
    assert env == WorkerEnv()
    assert (env.rank, env.size, env.local_rank, env.local_size, env.cross_rank, env.cross_size) == (0, 1, 0, 1, 0, 1)
    assert env.hostname == "localhost"


def test_round_trip():
    env = WorkerEnv(3, 8, 1, 2, 1, 4, "worker-1", "10.0.0.1", 4711, "gloo", "gloo", 5, "/run/key")
    assert WorkerEnv.from_environ(env.to_environ()) == env
    assert WorkerEnv.from_environ(WorkerEnv().to_environ()) == WorkerEnv()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"HOROVOD_RANK": "2"}, ["HOROVOD_RANK must be from 0 to 1", "got 2"]),
        ({"HOROVOD_RANK": "-1"}, ["HOROVOD_RANK must be 0 or more, got -1"]),
        ({"HOROVOD_RANK": "one"}, ["HOROVOD_RANK must be an integer, got 'one'"]),
        ({"HOROVOD_SIZE": "0"}, ["HOROVOD_SIZE must be 1 or more, got 0"]),
        ({"HOROVOD_LOCAL_RANK": "2"}, ["HOROVOD_LOCAL_RANK must be", "got 2"]),
        ({"HOROVOD_LOCAL_SIZE": "3"}, ["HOROVOD_LOCAL_SIZE must be at most HOROVOD_SIZE (2), got 3"]),
        ({"HOROVOD_CROSS_RANK": "1"}, ["HOROVOD_CROSS_RANK must be", "got 1"]),
        (
            {"HOROVOD_GLOO_RENDEZVOUS_PORT": "70000"},
            ["HOROVOD_GLOO_RENDEZVOUS_PORT must be from 1 to 65535, got 70000"],
        ),
        ({"HOROVOD_GLOO_RENDEZVOUS_PORT": "-1"}, ["HOROVOD_GLOO_RENDEZVOUS_PORT must be set together", "None"]),
        ({"HOROVOD_CONTROLLER": "smoke"}, ["HOROVOD_CONTROLLER must be one of gloo, mpi, got 'smoke'"]),
        ({"HOROVOD_CONTROLLER": "MPI"}, ["HOROVOD_CONTROLLER must be 'gloo'", "got 'mpi'"]),
        ({"HOROVOD_CPU_OPERATIONS": "smoke"}, ["HOROVOD_CPU_OPERATIONS must be one of gloo, mpi, ccl, got 'smoke'"]),
        ({"HOROVOD_KEY_FD": ""}, ["HOROVOD_KEY_FD nor HOROVOD_KEY_FILE", "horovodrun -np 2"]),
    ],
)
def test_bad_values_are_named(change, parts):
    with pytest.raises(ValueError) as caught:
        WorkerEnv.from_environ({**PAIR, **change})
    for part in parts:
        assert part in str(caught.value)


def test_several_processes_without_rendezvous_get_advice():
    with pytest.raises(ValueError, match=r"HOROVOD_SIZE is 4.*horovodrun -np 4"):
        WorkerEnv.from_environ({"HOROVOD_SIZE": "4", "HOROVOD_RANK": "1"})


def test_another_launchers_variables_without_a_key_are_refused():
    """TonY's Horovod runtime sets these variables."""
    variables = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "n1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "9999",
        "HOROVOD_CONTROLLER": "gloo",
    }
    with pytest.raises(ValueError, match=r"HOROVOD_SIZE is 2 .*HOROVOD_KEY_FILE.*MASTER_ADDR.*HOROVOD_JOB_KEY"):
        WorkerEnv.from_environ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1", **variables})


MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


@pytest.mark.parametrize(
    ("rank", "local_rank", "local_size", "expected"),
    [
        (2, 2, 4, (2, 4, 0, 2)),
        (5, 6, None, (0, 1, 5, 8)),
        (7, 3, 4, (3, 4, 1, 2)),
        (7, 0, 3, (0, 3, 2, 3)),  # hosts of 3, 3 and 2 ranks
        (7, 8, 9, (7, 8, 0, 1)),  # more ranks than there are
        (5, None, None, (0, 1, 5, 8)),
    ],
)
def test_local_ranks_are_guessed_until_ranks_have_met(rank, local_rank, local_size, expected):
    values = {"RANK": rank, "SIZE": 8, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    environ = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items() if value is not None}
    env = WorkerEnv.from_environ(environ)
    assert (env.local_rank, env.local_size, env.cross_rank, env.cross_size) == expected


@pytest.mark.parametrize("port", [0, 1, 65535, 65536])
def test_valid_ports(port):
    change = {"rendezvous_addr": "a", "rendezvous_port": port}
    if 1 <= port <= 65535:
        assert WorkerEnv(**change).rendezvous_port == port
    else:
        with pytest.raises(ValueError, match=f"must be from 1 to 65535, got {port}"):
            WorkerEnv(**change)


def test_key_given_by_the_user(monkeypatch, tmp_path):
    env = WorkerEnv.from_environ(MPIRUN)
    monkeypatch.setattr("horovod.common.contract.worker_env._stored_key", [])
    assert env.user_key() is None
    monkeypatch.setenv("HOROVOD_JOB_KEY", "0f" * 32 + "\n")
    assert env.user_key() == b"\x0f" * 32
    assert "HOROVOD_JOB_KEY" not in os.environ, "children would inherit it"
    assert env.user_key() == b"\x0f" * 32, "init may be called again"
    path = tmp_path / "key"
    path.write_text("e0" * 32 + "\n")
    path.chmod(0o600)
    assert WorkerEnv.from_environ({**MPIRUN, "HOROVOD_KEY_FILE": str(path)}).user_key() == b"\xe0" * 32


@pytest.mark.parametrize("text", ["", "0f" * 31, "0f" * 31 + "0g", "password"])
def test_invalid_keys_are_refused_and_not_shown(monkeypatch, text):
    monkeypatch.setattr("horovod.common.contract.worker_env._stored_key", [])
    monkeypatch.setenv("HOROVOD_JOB_KEY", text)
    with pytest.raises(ValueError, match="HOROVOD_JOB_KEY must be 64 hexadecimal digits") as caught:
        WorkerEnv.from_environ(MPIRUN).user_key()
    # Test runners and debuggers show the variables of each frame.
    steps = list(traceback.walk_tb(caught.tb))[1:]
    shown = str(caught.value) + repr([frame.f_locals for frame, _ in steps])
    assert not text or text not in shown


def test_a_single_process_removes_the_key_from_its_environment():
    program = (
        "import os\n"
        "from horovod.common.basics import HorovodBasics\n"
        "hvd = HorovodBasics('benchmark'); hvd.init(); hvd.shutdown()\n"
        "print('HOROVOD_JOB_KEY' in os.environ)\n"
    )
    environment = {**os.environ, "HOROVOD_JOB_KEY": "0f" * 32}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.fixture
def key_fd():
    key = make_key()
    fd = make_key_fd(key)
    yield key, fd
    os.close(fd)


def test_key_descriptor_is_sealed(key_fd):
    key, fd = key_fd
    with pytest.raises(OSError):
        os.pwrite(fd, b"x" * 32, 0)
    with pytest.raises(OSError):
        os.ftruncate(fd, 0)
    assert read_key_fd(fd) == key


def test_a_key_that_others_could_change_is_refused():
    fd = os.memfd_create("key", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, make_key())
        with pytest.raises(ValueError, match="a sealed memfd of 32 bytes"):
            read_key_fd(fd)
    finally:
        os.close(fd)


def test_key_file(tmp_path):
    key, path = make_key(), tmp_path / "key"
    path.write_bytes(key)
    path.chmod(0o600)
    assert read_key_file(str(path)) == key
    for mode in (0o640, 0o604, 0o602, 0o644):
        path.chmod(mode)
        with pytest.raises(ValueError, match="HOROVOD_KEY_FILE must be a regular file"):
            read_key_file(str(path))
    path.chmod(0o600)
    path.write_bytes(key + b"x")
    with pytest.raises(ValueError, match="of 33 bytes") as caught:
        read_key_file(str(path))
    assert key.hex() not in str(caught.value)
    with pytest.raises(ValueError, match="cannot be opened"):
        read_key_file(str(tmp_path / "absent"))
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ValueError, match="must be a regular file"):
        read_key_file(str(tmp_path / "fifo"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_key_file_of_another_user_is_refused(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(make_key())
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(ValueError, match="owner 12345"):
        read_key_file(str(path))


def test_paths_of_descriptors():
    paths = (path_of_descriptor(17, 3), "/home/me/job.key", "/proc/17/fd/3/x", "/x/proc/17/fd/3", "/proc/self/fd/3")
    assert [is_path_of_descriptor(path) for path in paths] == [True, False, False, False, False]
