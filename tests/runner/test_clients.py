"""Messages, flags and names of the launcher that existing programs rely on; each test names its row."""

import subprocess

import pytest

from horovod.runner.base.job_result import LaunchError
from horovod.runner.command import cli
from horovod.runner.command.flags import FLAGS
from horovod.runner.plan.hosts import Host, assign
from tests.runner.launching import LIMIT, marked_environment, processes_with, python

COMMAND = ["python", "train.py"]
LONG = {name: flag for flag in FLAGS for name in flag.names if name.startswith("--")}
NEGATED = {f"--no-{name[2:]}": flag for name, flag in LONG.items() if flag.no}


# Row: `horovodrun -n 2` and every other unique prefix of a long flag


def prefixes():
    """Return (prefix, its meaning: flags and whether it disables them), up to the first that means one flag."""
    meanings = {name: (flag.dest, True) for name, flag in LONG.items()}
    meanings |= {name: (flag.dest, False) for name, flag in NEGATED.items()} | {"--help": ("help", True)}
    for name in meanings:
        for end in range(3, len(name)):
            beginning = name[:end]
            if beginning in meanings:
                continue
            found = {meaning for other, meaning in meanings.items() if other.startswith(beginning)}
            yield beginning, found
            if len(found) == 1:
                break  # longer prefixes mean the same


SAMPLES = {"N": "1", "N[,N...]": "1", "F": "0.5", "LEVEL": "info", "HOW": "sqrt", "SHELL": "bash", "FIRST:END": "1:2"}


def test_shortest_abbreviations_of_all_flags():
    unique = ambiguous = 0
    for beginning, meanings in {(b, frozenset(m)) for b, m in prefixes()}:
        if len(meanings) > 1:
            ambiguous += 1
            with pytest.raises(LaunchError, match=f"^{beginning} is ambiguous: it could be --.* or --"):
                cli.parse([beginning, *COMMAND])
            continue
        (dest, on) = next(iter(meanings))
        if dest == "help":
            continue
        unique += 1
        flag = next(flag for flag in FLAGS if flag.dest == dest)
        sample = SAMPLES.get(flag.value.metavar, "x") if flag.value else ""
        args = [beginning, *([sample] * flag.nargs if flag.value else [])]
        namespace, command = cli.parse([*args, *COMMAND])
        value = getattr(namespace, dest)
        assert value is not None if flag.value else value is on, beginning
        assert command == COMMAND, beginning
    assert unique > 60
    assert ambiguous > 30


# Row: `horovodrun -np 2 NAME=value python x.py` (through `env`)


def settings(*argv):
    return cli.settings(*cli.parse(argv), {})


def test_variables_in_front_of_the_command():
    command = ["A=1", "B_2=x y", "python", "x.py", "C=3"]
    assert settings("-np", "2", *command).command == ["env", *command]
    assert settings("-np", "2", "--", *command).command == ["env", *command]
    for plain in (["python", "x.py", "A=1"], ["./A=1"], ["1A=x", "y"]):
        assert settings("-np", "2", *plain).command == plain
    with pytest.raises(LaunchError, match="the command is missing"):
        settings("-np", "2", "A=1", "B=2")
    assert "A=1" not in settings("-np", "2", "--benchmark", "--", "--quick").command


# Row: horovod.runner.launch.{run_commandline, _run, parse_args}


def test_launcher_called_from_a_program():
    program = (
        "import os, signal, sys, threading\n"
        "from horovod.runner import launch\n"
        "args = launch.parse_args(['--num-p', '2', sys.executable, '-c', 'print(41 + 1)'])\n"
        "assert (args.num_proc, args.command[1]) == (2, '-c'), args\n"
        "before = [signal.getsignal(n) for n in (2, 15, 20)]\n"
        "open_ones = len(os.listdir('/proc/self/fd'))\n"
        "assert launch._run(args) is None\n"
        "assert len(os.listdir('/proc/self/fd')) == open_ones\n"
        "assert [signal.getsignal(n) for n in (2, 15, 20)] == before\n"
        "thread = threading.Thread(target=launch._run, args=(args,)); thread.start(); thread.join()\n"
        "try:\n"
        "    launch._run(launch.parse_args(['-np', '1', sys.executable, '-c', 'raise SystemExit(7)']))\n"
        "except RuntimeError as error:\n"
        "    assert 'rank 0' in str(error) and 'exit code 7' in str(error), error\n"
        "sys.argv = ['horovodrun', '-np', '1', sys.executable, '-c', 'raise SystemExit(5)']\n"
        "launch.run_commandline()\n"
    )
    env = marked_environment()
    done = subprocess.run(
        python(program), env=env, capture_output=True, timeout=LIMIT, stdin=subprocess.DEVNULL, text=True
    )
    assert done.returncode == 5, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:42"] * 2 + ["[1]<stdout>:42"] * 2
    assert processes_with(env["HVD_TEST_MARK"]) == []


# Row: horovod.runner.common.util.{env, hosts, settings}; horovod.runner.util.threads.in_thread


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, (0, 1)),
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "8"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, (1, 4)),
        ({"PMI_RANK": "2", "PMI_SIZE": "5"}, (2, 5)),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "PMI_RANK": "2", "PMI_SIZE": "5"}, (0, 2)),
    ],
)
def test_rank_and_size_of_the_environment(environ, found, monkeypatch):
    from horovod.runner.common.util import env

    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert env.get_env_rank_and_size() == found


def test_exported_names(monkeypatch):
    from horovod.runner.common.util import env

    assert env.LOG_LEVEL_STR == ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
    assert {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES"} <= env.IGNORE_REGEXES
    assert env.is_exportable("PATH")
    assert not any(map(env.is_exportable, ("BASH_FUNC_x%%", "OLDPWD", "CUDA_VISIBLE_DEVICES", "_HOROVOD_SECRET_KEY")))
    assert not env.is_kubeflow_mpi()
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", env.KUBEFLOW_MPI_EXEC)
    assert env.is_kubeflow_mpi()


def test_hosts_and_places(tmp_path):
    from horovod.runner.common.util import hosts

    assert hosts.parse_hosts("a:2,b:1") == [hosts.HostInfo("a", 2), hosts.HostInfo("b", 1)]
    assert hosts.HostInfo.from_string("a:2") == hosts.HostInfo(hostname="a", slots=2)
    assert hosts.parse_hosts_and_slots("a:2,b:1") == (["a", "b"], {"a": 2, "b": 1})
    with pytest.raises(ValueError, match="'b'"):
        hosts.parse_hosts(hosts_string="a:2,b")
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb slots=1\n")
    assert hosts.parse_host_files(filename=str(file)) == "a:2,b:1"
    parsed = hosts.parse_hosts("a:2,b:1")
    places = hosts.get_host_assignments(parsed, 2, 3)
    assert [(p.hostname, p.rank, p.local_rank, p.cross_rank) for p in places] == [
        ("a", 0, 0, 0), ("a", 1, 1, 0), ("b", 2, 0, 1)
    ]  # fmt: skip
    assert {(p.size, p.local_size, p.cross_size) for p in places} == {(3, 2, 2), (3, 2, 1), (3, 1, 2)}
    assert len(hosts.get_host_assignments(hosts=parsed, min_num_proc=1, max_num_proc=2)) == 2
    assert len(hosts.get_host_assignments(parsed, 2)) == 3
    with pytest.raises(ValueError, match=r"4 processes.*3 slots"):
        hosts.get_host_assignments(parsed, 4)
    assert hosts.INVALID_SLOT_INFO.rank == -1
    # The rules are the launcher's own.
    assert [slot.rank for slot in assign([Host("a", 2), Host("b", 1)], 3)] == [place.rank for place in places]


def test_settings_are_kept_and_their_key_is_not_shown():
    from horovod.runner.common.util.settings import Settings

    settings = Settings(num_proc=2, verbose=2, key=b"secret", nics=["lo"], hosts="a:2", start_timeout=30)
    assert (settings.num_proc, settings.hosts, settings.nics, settings.elastic) == (2, "a:2", ["lo"], False)
    assert "secret" not in repr(settings)
