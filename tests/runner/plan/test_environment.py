import pytest

from horovod.common.contract.worker_env import WorkerEnv
from horovod.runner.plan import environment
from horovod.runner.plan.hosts import Host, Slot, assign


def test_variables_that_are_not_forwarded():
    kept = {"HOME": "/root", "CUDA_HOME": "/usr", "MY_SECRET_KEY": "1", "HOROVOD_CYCLE_TIME": "2"}
    dropped = {
        "BASH_FUNC_f%%": "() { :; }",
        "OLDPWD": "/",
        "CUDA_VISIBLE_DEVICES": "0",
        "ROCR_CUDA_VISIBLE_DEVICES": "0",
        "_HOROVOD_SECRET_KEY": "k",
        "HOROVOD_KEY_FD": "7",
        "HOROVOD_WORKER": "3",
        "HOROVOD_KEY_FILE": "/k",
    }
    assert environment.passed_on({**kept, **dropped}) == kept


SECRETS = {"AWS_SECRET": "s", "AWS_REGION": "r", "WANDB_KEY": "w"}
PLAIN = {"PATH": "/bin", "HOME": "/home/me", "LC_ALL": "C", "HOROVOD_CYCLE_TIME": "2", "PYTHONPATH": "/src"}


@pytest.mark.parametrize(
    ("allow", "deny", "passing"),
    [
        ((), (), {"AWS_SECRET", "AWS_REGION", "WANDB_KEY", *PLAIN}),
        ((), ("AWS_*",), {"WANDB_KEY", *PLAIN}),
        (("AWS_*",), (), {"AWS_SECRET", "AWS_REGION", *PLAIN}),
        (("AWS_*",), ("*SECRET",), {"AWS_REGION", *PLAIN}),
        (("NOTHING",), ("PYTHONPATH", "HOROVOD_*"), {"PATH", "HOME", "LC_ALL"}),
        (("*",), (), {"AWS_SECRET", "AWS_REGION", "WANDB_KEY", *PLAIN}),
        (("_HOROVOD_SECRET_KEY", "HOROVOD_KEY_FD"), (), set(PLAIN)),
        (("aws_*",), (), set(PLAIN)),
        (("AWS_REGIO?",), (), {"AWS_REGION", *PLAIN}),
    ],
)
def test_users_can_pass_or_block_variables(allow, deny, passing):
    barred = {"_HOROVOD_SECRET_KEY": "k", "HOROVOD_KEY_FD": "3", "HOROVOD_JOB_KEY": "k"}
    result = environment.passed_on({**SECRETS, **PLAIN, **barred}, allow, deny)
    assert set(result) == passing


def test_machine_variables_are_not_forwarded():
    everywhere = {"PATH": "/bin", "LD_PRELOAD": "libjemalloc.so", "TERM": "xterm", "XDG_CACHE_HOME": "/c"}
    here = {
        "SSH_AUTH_SOCK": "/tmp/agent",
        "DISPLAY": ":0",
        "HOSTNAME": "here",
        "HOME": "/home/me",
        "TMPDIR": "/tmp/job7",
        "XDG_RUNTIME_DIR": "/run/user/0",
        "DBUS_SESSION_BUS_ADDRESS": "unix:x",
        "TERM_PROGRAM_VERSION": "3",
        "_": "/bin/env",
    }
    environ = {**everywhere, **here}
    assert environment.passed_on(environ, remote=False) == environ
    assert environment.passed_on(environ, remote=True) == everywhere
    # A fully named variable is still passed; a pattern may match by accident
    assert environment.passed_on(environ, allow=("*", "TMPDIR"), remote=True) == {**everywhere, "TMPDIR": "/tmp/job7"}
    assert environment.of_host(environ) == here
    assert environment.of_host(environ, deny=("SSH_*", "D*", "TERM*")).keys() == here.keys() - {
        "SSH_AUTH_SOCK",
        "DISPLAY",
        "DBUS_SESSION_BUS_ADDRESS",
        "TERM_PROGRAM_VERSION",
    }


def test_flags_win_over_the_environment_and_both_over_defaults():
    assert environment.job_environment({}, {}, "lo") == {
        "PYTHONUNBUFFERED": "1",
        "HOROVOD_GLOO_IFACE": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
    environ = {"PYTHONUNBUFFERED": "", "HOROVOD_GLOO_IFACE": "eth0", "HOROVOD_CYCLE_TIME": "5"}
    result = environment.job_environment(environ, {"HOROVOD_CYCLE_TIME": "1"}, "lo")
    assert result == {**environ, "HOROVOD_CYCLE_TIME": "1", "NCCL_SOCKET_IFNAME": "lo"}


def test_threads_share_the_cores():
    assert environment.omp_threads(16, 4) == 4
    assert environment.omp_threads(7, 2) == 3
    assert environment.omp_threads(2, 8) == 1


def test_workers_get_the_contract():
    slot = Slot(rank=3, size=4, local_rank=1, local_size=2, cross_rank=1, cross_size=2, hostname="b")
    result = environment.worker_environment(slot, "127.0.0.1", 4711)
    assert result["HOROVOD_CONTROLLER"] == result["HOROVOD_CPU_OPERATIONS"] == "gloo"
    expected = WorkerEnv(3, 4, 1, 2, 1, 2, "b", "127.0.0.1", 4711, key_fd=5)
    assert WorkerEnv.from_environ({**result, "HOROVOD_KEY_FD": "5"}) == expected


def test_each_worker_gets_its_torch_rank():
    slots = assign([Host("a", 2), Host("b", 1)], 3)
    hosts = [slot.hostname for slot in slots]
    master = environment.torch_master("10.0.0.1", 29500, {})
    envs = [environment.torch_variables(slot, hosts, master) for slot in slots]
    assert [(one["RANK"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"], one["GROUP_RANK"]) for one in envs] == [
        ("0", "0", "2", "0"),
        ("1", "1", "2", "0"),
        ("2", "0", "1", "1"),
    ]
    assert {(one["WORLD_SIZE"], one["MASTER_ADDR"], one["MASTER_PORT"]) for one in envs} == {("3", "10.0.0.1", "29500")}


def test_the_users_torch_address_and_port_take_precedence():
    environ = {"MASTER_PORT": "1234"}
    assert environment.torch_master("h", 1, environ) == {"MASTER_ADDR": "h", "MASTER_PORT": "1234"}
    assert environment.torch_master("h", 1, {**environ, "MASTER_ADDR": "me"}) == {**environ, "MASTER_ADDR": "me"}


def test_rays_debugger_is_not_passed_on():
    for debugger, passes in (("ray.util.rpdb.set_trace", False), ("ipdb.set_trace", True), ("0", True)):
        assert ("PYTHONBREAKPOINT" in environment.passed_on({"PYTHONBREAKPOINT": debugger})) == passes
