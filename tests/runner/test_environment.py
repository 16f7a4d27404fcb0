from horovod.common.worker_env import WorkerEnv
from horovod.runner import environment
from horovod.runner.hosts import Slot


def test_what_is_not_passed_on():
    kept = {"HOME": "/root", "CUDA_HOME": "/usr", "MY_SECRET_KEY": "1", "HOROVOD_CYCLE_TIME": "2"}
    dropped = {
        "BASH_FUNC_f%%": "() { :; }",
        "OLDPWD": "/",
        "CUDA_VISIBLE_DEVICES": "0",
        "ROCR_CUDA_VISIBLE_DEVICES": "0",
        "_HOROVOD_SECRET_KEY": "k",
        "HOROVOD_KEY_FD": "7",
        "HOROVOD_KEY_FILE": "/k",
    }
    assert environment.passed_on({**kept, **dropped}) == kept


def test_flags_win_over_the_environment_and_both_over_defaults():
    assert environment.job_environment({}, {}, "lo") == {
        "PYTHONUNBUFFERED": "1",
        "HOROVOD_GLOO_IFACE": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
    given = {"PYTHONUNBUFFERED": "", "HOROVOD_GLOO_IFACE": "eth0", "HOROVOD_CYCLE_TIME": "5"}
    made = environment.job_environment(given, {"HOROVOD_CYCLE_TIME": "1"}, "lo")
    assert made == {**given, "HOROVOD_CYCLE_TIME": "1", "NCCL_SOCKET_IFNAME": "lo"}


def test_threads_share_the_cores():
    assert environment.omp_threads(16, 4) == 4
    assert environment.omp_threads(7, 2) == 3
    assert environment.omp_threads(2, 8) == 1


def test_workers_get_the_contract():
    slot = Slot(rank=3, size=4, local_rank=1, local_size=2, cross_rank=1, cross_size=2, hostname="b")
    made = environment.worker_environment(slot, "127.0.0.1", 4711)
    assert made["HOROVOD_CONTROLLER"] == made["HOROVOD_CPU_OPERATIONS"] == "gloo"
    expected = WorkerEnv(3, 4, 1, 2, 1, 2, "b", "127.0.0.1", 4711, key_fd=5)
    assert WorkerEnv.from_environ({**made, "HOROVOD_KEY_FD": "5"}) == expected
