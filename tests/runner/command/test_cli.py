import warnings

import pytest

from horovod.common.contract.settings import TABLE
from horovod.runner.command import cli
from horovod.runner.command.flags import FLAGS

COMMAND = ["python", "train.py"]


def read(*arguments, environ=None):
    namespace, command = cli.parse([*arguments, *COMMAND])
    return cli.settings(namespace, command, environ or {})


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--fusion-threshold-mb", "32"], {"HOROVOD_FUSION_THRESHOLD": "33554432"}),
        (["--fusion-threshold-mb=0"], {"HOROVOD_FUSION_THRESHOLD": "0"}),
        (["--cycle-time-ms", "2.5"], {"HOROVOD_CYCLE_TIME": "2.5"}),
        (["--no-hierarchical-allgather"], {"HOROVOD_HIERARCHICAL_ALLGATHER": "0"}),
        (["--torus-allreduce", "--no-torus-allreduce"], {"HOROVOD_TORUS_ALLREDUCE": "0"}),
        (
            ["--timeline-filename", "t.json", "--timeline-steps", "100:200", "--timeline-last=2.5"],
            {"HOROVOD_TIMELINE": "t.json", "HOROVOD_TIMELINE_STEPS": "100:200", "HOROVOD_TIMELINE_LAST": "2.5"},
        ),
        (["--no-stall-check"], {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        (["--stall-check"], {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        (["--tcp"], {"NCCL_IB_DISABLE": "1"}),
        (["--thread-affinity", "0,1"], {"HOROVOD_THREAD_AFFINITY": "0,1"}),
        (["--log-level", "DEBUG"], {"HOROVOD_LOG_LEVEL": "DEBUG"}),
        (["--log-with-timestamp"], {"HOROVOD_LOG_HIDE_TIME": "0"}),
        (["--log-hide-timestamp"], {"HOROVOD_LOG_HIDE_TIME": "1"}),
        (["--network-interfaces", "lo"], {"HOROVOD_GLOO_IFACE": "lo", "NCCL_SOCKET_IFNAME": "lo"}),
        (["--network-interface", "lo"], {"HOROVOD_GLOO_IFACE": "lo", "NCCL_SOCKET_IFNAME": "lo"}),
        (["--start-timeout", "12"], {"HOROVOD_START_TIMEOUT": "12"}),
        (["--gloo", "--verbose", "-prefix-timestamp", "-p", "22", "-i", "key", "--disable-cache"], {}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*(not part of this version yet|has no effect)")
def test_flags_become_variables(arguments, variables):
    assert read("-np", "2", *arguments).variables == variables


def test_every_setting_has_its_flag():
    by_name = {name: flag for flag in FLAGS for name in flag.names}
    for setting in TABLE:
        if setting.flag:
            flag = by_name[setting.flag]
            assert flag.variable == setting.name or setting.name == "HOROVOD_GLOO_IFACE"


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("HOROVOD_ENABLE_XLA_OPS", "yes", "^HOROVOD_ENABLE_XLA_OPS is 'yes', but what it controls is not part"),
        ("HOROVOD_HIERARCHICAL_ALLGATHER", "1", "^HOROVOD_HIERARCHICAL_ALLGATHER is '1', but this has no effect"),
        ("HOROVOD_CPU_OPERATIONS", "CCL", "^HOROVOD_CPU_OPERATIONS is 'CCL', but .* instead"),
    ],
)
def test_unused_variables_warn_like_their_flags(variable, text, message):
    with pytest.warns(UserWarning, match=message) as warned:
        read("-np", "1", environ={variable: text})
    assert len(warned) == 1


def test_arguments_after_the_command_belong_to_it():
    argv = ["python", "a.py", "-np", "9", "--verb", "--hos", "-H", "x", "--", "-v"]
    namespace, command = cli.parse(["-np", "2", *argv])
    assert (namespace.num_proc, namespace.verbose, command) == (2, None, argv)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-np", "0"], ["-np", "'0'", "at least 1"]),
        (["-np", "two"], ["-np", "'two'", "integer"]),
        (["-np", "1", "--cycle-time-ms", "-1"], ["--cycle-time-ms", "'-1'", "from 0 to 60000"]),
        (["-np", "1", "--fusion-threshold-mb", "-8"], ["--fusion-threshold-mb", "'-8'"]),
        (["-np", "1", "--fusion-threshold-mb", "9999999"], ["--fusion-threshold-mb", "'9999999'", "1048576"]),
        (["-np", "1", "--log-level", "LOUD"], ["--log-level", "'LOUD'", "trace, debug"]),
        (["-np", "1", "--thread-affinity", "0,-1"], ["--thread-affinity", "'0,-1'"]),
        (["-np", "1", "--timeline-steps=9:9"], ["--timeline-steps", "FIRST:END"]),
        (["-np", "1", "--start-timeout", "0"], ["--start-timeout", "'0'"]),
        (["-np", "1", "--no-such-flag"], ["--no-such-flag"]),
        (["-np", "1", "--ver"], ["--ver is ambiguous", "--verbose or --version"]),
        (["-np", "1", "--log-levle=debug"], ["unknown flag --log-levle", "did you mean --log-level?"]),
        (["--np", "1"], ["unknown flag --np", "did you mean -np?"]),
        (["-hostfil", "f"], ["unknown flag -hostfil;", "did you mean -hostfile?"]),
        (["-np", "1", "-p=x"], ["--ssh-port", "'x'"]),
        (["-np", "1", "-H", "a:1", "--hostfile", "f"], ["--hosts", "--hostfile", "not allowed"]),
        (["-np", "1", "--gloo", "--mpi"], ["--gloo", "--mpi", "not allowed"]),
        (["-np", "1", "--log-with-timestamp", "--log-hide-timestamp"], ["--log-with", "--log-hide", "not allowed"]),
        (["-np", "3", "-H", "localhost:2"], ["3", "2 slots"]),
        (["-np", "1", "-H", "localhost"], ["'localhost'", "name:slots"]),
        (["-np", "1", "--hostfile", "/no/such/file"], ["--hostfile", "/no/such/file"]),
        (["-np", "1", "--network-interfaces", "lo,nope0"], ["nope0", "lo"]),
        (["-np", "3", "--thread-affinity", "0,1"], ["--thread-affinity", "got 2 (0,1)", "3 processes"]),
        ([], ["-np"]),
    ],
)
def test_bad_input_is_named(arguments, named):
    with pytest.raises(ValueError) as caught:
        read(*arguments)
    for part in named:
        assert part in str(caught.value)


def test_a_missing_command_is_an_error():
    namespace, command = cli.parse(["-np", "2"])
    with pytest.raises(ValueError, match="command is missing"):
        cli.settings(namespace, command, {})


@pytest.mark.parametrize("flag", ["--autotune-log-file=f", "--timeline-mark-cycles"])
def test_flags_without_their_required_flag_are_reported(flag):
    with pytest.warns(UserWarning, match="has no effect without"):
        assert read("-np", "1", flag).variables == {}


@pytest.mark.filterwarnings("ignore:.*(not part of this version yet|has no effect)")
def test_the_needed_feature_may_be_on_by_variable():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*has no effect")
        settings = read("-np", "1", "--autotune-log-file=f", environ={"HOROVOD_AUTOTUNE": "1"})
    assert settings.variables == {"HOROVOD_AUTOTUNE_LOG": "f"}


def test_hostfile(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# mine\n127.0.0.1 slots=1\nlocalhost slots=2\n")
    assert [slot.hostname for slot in read("-np", "2", "-hostfile", str(file)).slots] == ["127.0.0.1", "localhost"]


def test_lists_of_variables():
    settings = read("-np", "1", "--env-deny", "AWS_*, TOKEN", environ={"HOROVOD_ENV_ALLOW": "A,B*"})
    assert (settings.env_allow, settings.options.env_deny) == (("A", "B*"), ["AWS_*", "TOKEN"])
    assert read("-np", "1", "--env-allow=C", environ={"HOROVOD_ENV_ALLOW": "A"}).env_allow == ("C",)
    for bad in ("A,,B", "A=1", ","):
        with pytest.raises(ValueError, match=f"HOROVOD_ENV_DENY must be .*, got '{bad}'"):
            read("-np", "1", environ={"HOROVOD_ENV_DENY": bad})


def test_every_flag_has_help_and_a_unique_name():
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))
    for flag in FLAGS:
        assert flag.help
