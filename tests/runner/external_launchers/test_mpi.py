"""mpirun's command line, its output, and a user's key, tested without MPI. With real MPI: tests/launchers."""

import os

import pytest

from horovod.common.contract.reasons import Called, Ending, encode
from horovod.common.contract.worker_env import make_key_fd, path_of_descriptor
from horovod.runner.attribution.endings import Endings
from horovod.runner.base.job_result import LaunchError
from horovod.runner.command import cli
from horovod.runner.external_launchers import foreign_job, mpi, mpi_output
from horovod.runner.external_launchers.mpi import Flavour, build, recognise
from horovod.runner.plan.hosts import Host, assign
from horovod.runner.plan.settings import MpiOptions
from tests.runner.external_launchers.fakes import LSF, fake

VERSIONS = {
    "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/": Flavour.OPEN_MPI,
    "mpirun (Open MPI) 4.1.4": Flavour.OPEN_MPI,
    "mpirun (IBM Spectrum MPI) 10.4.0.03rtm4": Flavour.SPECTRUM,
    "HYDRA build details:\n    Version:                                 5.0.2": Flavour.MPICH,
    "Intel(R) MPI Library for Linux* OS, Version 2021.9": Flavour.INTEL,
    "slurm 22.05": None,
}
TWO = assign([Host("a", 2), Host("b", 2)], 4)
UNEQUAL = assign([Host("a", 2), Host("b", 1)], 3)
COMMAND = ["python", "train.py", "--x"]


@pytest.mark.parametrize("text", VERSIONS)
def test_families(text):
    assert recognise(text) is VERSIONS[text]


def test_open_mpi():
    command = build("mpirun", Flavour.OPEN_MPI, TWO, COMMAND, ["A", "B"], MpiOptions(("--oversubscribe",)))
    assert " ".join(command) == (
        "mpirun --allow-run-as-root --tag-output -np 4 -H a:2,b:2 --bind-to none --map-by slot --mca pml ob1 --mca btl "
        "^openib -x A -x B --oversubscribe python train.py --x"
    )


def test_open_mpi_with_everything():
    options = MpiOptions((), ("--bind-to", "core"), tcp=True)
    command = build("mpirun", Flavour.OPEN_MPI, UNEQUAL, COMMAND, [], options, interfaces="eth1,eth2", ssh_port=2222,
                  ssh_identity_file="/k ey")  # fmt: skip
    text = " ".join(command)
    assert "-np 3 -H a:2,b:1 --bind-to core --mca pml" in text
    assert "--map-by" not in text
    assert "--mca btl_tcp_if_include eth1,eth2" in text
    assert command[command.index("plm_rsh_args") + 1] == "-p 2222 -i '/k ey'"
    assert "-tcp" not in command


def test_spectrum():
    command = " ".join(build("mpirun", Flavour.SPECTRUM, TWO, COMMAND, [], MpiOptions(tcp=True)))
    assert "--bind-to socket --map-by socket --rank-by core -tcp" in command
    assert "btl" not in command


@pytest.mark.parametrize("flavour", [Flavour.MPICH, Flavour.INTEL])
def test_hydra(flavour):
    command = " ".join(build("mpiexec", flavour, TWO, COMMAND, ["A", "B"], MpiOptions(), interfaces="eth1,eth2"))
    assert command == "mpiexec -l -np 4 -hosts a,b -ppn 2 -bind-to none -iface eth1 -genvlist A,B python train.py --x"
    assert "-hosts a:2,b:1 -bind-to" in " ".join(build("mpiexec", flavour, UNEQUAL, COMMAND, [], MpiOptions()))
    with pytest.raises(LaunchError, match=r"--ssh-port.*ssh/config"):
        build("mpiexec", flavour, TWO, COMMAND, [], MpiOptions(), ssh_port=22)


def settings(*argv):
    return cli.settings(*cli.parse([*argv, "python", "x.py"]), {})


def test_no_mpi_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"--mpi needs mpirun .* none on PATH"):
        mpi.find_launcher()
    fake(tmp_path, "mpirun", "print('something else 1.0')")
    with pytest.raises(ValueError, match=r"something else 1\.0"):
        mpi.find_launcher()


def test_variables_of_another_job_are_not_forwarded():
    environ = {
        "A": "1",
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "2",
        "HOROVOD_CYCLE_TIME": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_KEY_FD": "7",
        "HOROVOD_KEY_FILE": "/proc/4711/fd/7",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh",
    }
    variables = mpi.job_variables(settings("-np", "2", "--mpi", "--cycle-time-ms", "3"), environ)
    assert variables == {
        "A": "1",
        "HOROVOD_CYCLE_TIME": "3",
        "HOROVOD_CONTROLLER": "mpi",
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "job.key"
    path.write_text("0f" * 32)
    path.chmod(0o600)
    return path


OPEN_MPI = "print('mpirun (Open MPI) 5.0.0')"


@pytest.mark.parametrize("flags", [(), ("-H", "n1:1,n2:1"), ("--env-deny", "HOROVOD_*")])
def test_a_key_file_of_the_user_reaches_the_ranks(tmp_path, monkeypatch, key_file, flags):
    fake(tmp_path, "mpirun", OPEN_MPI)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    parsed = settings("-np", "2", "--mpi", "--mpi-args=-x y", *flags)
    command, variables = mpi.prepare(parsed, {"HOROVOD_KEY_FILE": "job.key", "A": "1"})
    assert variables["HOROVOD_KEY_FILE"] == str(key_file)
    assert "HOROVOD_KEY_FILE" in command
    assert jsrun_command(tmp_path, monkeypatch, parsed, {"HOROVOD_KEY_FILE": "job.key"}) == str(key_file)


def jsrun_command(tmp_path, monkeypatch, settings, environ):
    """Return the key file that jsrun is asked to pass on."""
    fake(tmp_path, "jsrun", "import os, sys\nprint('-E', os.environ[sys.argv[sys.argv.index('HOROVOD_KEY_FILE')]])")
    seen = []
    monkeypatch.setattr(foreign_job, "run_command", lambda command, variables, *_: seen.append((command, variables)))
    mpi.run_jsrun(settings, {**LSF, **environ})
    [(command, variables)] = seen
    argv = [*settings.mpi.extra, *settings.whole_command]
    assert command[-len(argv) :] == argv
    assert command[command.index("HOROVOD_KEY_FILE") - 1] == "-E"
    return variables["HOROVOD_KEY_FILE"]


def test_key_files_that_ranks_would_refuse_are_refused_early(tmp_path, key_file):
    key_file.chmod(0o644)
    with pytest.raises(LaunchError, match=r"HOROVOD_KEY_FILE must be .*job.key' \(owner \d+, mode 0644\)"):
        mpi.job_variables(settings("-np", "2", "--mpi"), {"HOROVOD_KEY_FILE": str(key_file)})
    nowhere = {"HOROVOD_KEY_FILE": str(tmp_path / "absent")}
    with pytest.raises(LaunchError, match="absent', which cannot be opened"):
        mpi.job_variables(settings("-np", "2", "--mpi"), nowhere)
    # It may be different on the hosts of the job; if not, the ranks report it.
    far = mpi.job_variables(settings("-np", "2", "--mpi", "-H", "n1:1,n2:1"), nowhere)
    assert far["HOROVOD_KEY_FILE"] == nowhere["HOROVOD_KEY_FILE"]


def test_a_key_in_an_open_descriptor_belongs_to_the_user():
    """It belongs to another job only if that job's own variables are set, too."""
    fd = make_key_fd(b"k" * 32)
    held = {"HOROVOD_KEY_FILE": path_of_descriptor(os.getpid(), fd)}
    try:
        assert mpi.job_variables(settings("-np", "2", "--mpi"), held)["HOROVOD_KEY_FILE"] == held["HOROVOD_KEY_FILE"]
        with pytest.raises(LaunchError, match=r"must be a file .* got .*, a descriptor of a process of this machine"):
            mpi.job_variables(settings("-np", "2", "--mpi", "-H", "n1:1,n2:1"), held)
        outer = {**held, "HOROVOD_KEY_FD": "7"}
        assert "HOROVOD_KEY_FILE" not in mpi.job_variables(settings("-np", "2", "--mpi"), outer)
    finally:
        os.close(fd)


@pytest.mark.parametrize("text", ["0f" * 32, ""], ids=["key", "empty"])
def test_a_key_in_a_variable_is_refused_with_advice(text):
    with pytest.raises(LaunchError, match=r"(?s)HOROVOD_JOB_KEY must not be set.*HOROVOD_KEY_FILE to") as caught:
        mpi.job_variables(settings("-np", "2", "--mpi"), {"HOROVOD_JOB_KEY": text})
    assert not text or text not in str(caught.value)


PIECES = [
    (b"[1,0]<stdout>: out\n[1,1]<stdout>:old\n", [(0, b"out\n"), (1, b"old\n")]),
    (b"[0] out\n[12] more\n", [(0, b"out\n"), (12, b"more\n")]),
    (b"[1,3]<stderr>: 10%\r 20%\r\nmpirun: it\n", [(3, b"10%\r"), (3, b" 20%\r"), (3, b"\n"), (None, b"mpirun: it\n")]),
    (b"[3] text[3] \n", [(3, b"text\n")]),
    (b"[1,0]<stdout>: no end", [(0, b"no end")]),
    # Hydra: a rank draws after another rank's bar, or prints there.
    (
        b"[1] \r5% [x][0] \r9% [x][1] \r6%[0] word\n[9] of 10[7] \r[1] \n",
        [
            (1, b"\r"),
            (1, b"5% [x]"),
            (0, b"\r"),
            (0, b"9% [x]"),
            (1, b"\r"),
            (1, b"6%"),
            (0, b"word\n"),
            (9, b"of 10[7] \r"),
            (1, b"\n"),
        ],
    ),
    (b"[1] \r[0] part [0] of 2: 5%\n", [(1, b"\r"), (1, b"[0] part [0] of 2: 5%\n")]),
    (b"[x] [1,0]\n", [(None, b"[x] [1,0]\n")]),
]


@pytest.mark.parametrize(("data", "pieces"), PIECES)
@pytest.mark.parametrize("step", [1, 1000])
def test_ranks_of_output_lines(data, pieces, step):
    lines = mpi_output.Lines()
    found = [piece for at in range(0, len(data), step) for piece in lines.feed(data[at : at + step])]
    assert [*found, *lines.finish()] == pieces


TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    f()\n'
OWN = TRACEBACK + "ValueError: no more data\n"
VICTIM = TRACEBACK + (
    "horovod.common.exceptions.HorovodInternalError: rank 1 (host b, pid 77) was lost: the peer closed its connection\n"
)
HOSTS = {0: "a", 1: "b"}
SAID = {
    "Open MPI, signal": "prterun noticed that process rank 1 with PID 77 on node b exited on\nsignal 9 (Killed).\n",
    "Open MPI, code": "   Process name: [prterun-vm-7@1,1]\n   Exit code:    3\n",
    "Hydra, signal": "=   PID 77 RUNNING AT b\n=   EXIT CODE: 9\nEXIT STRING: Killed (signal 9)\n",
    "Hydra, another": "=   PID 76 RUNNING AT a\n=   EXIT CODE: 9\nEXIT STRING: Killed (signal 9)\n",
}


@pytest.mark.parametrize(
    ("code", "lines", "tails", "expected"),
    [
        (137, "Open MPI, signal", {0: VICTIM}, "rank 1 on host b failed first: killed by signal 9"),
        (3, "Open MPI, code", {}, "rank 1 on host b failed first: exit code 3"),
        (3, "Open MPI, code", {1: OWN}, "    ValueError: no more data"),
        (1, "", {0: VICTIM, 1: OWN}, "rank 1 on host b failed first: exit code 1"),
        (9, "Hydra, signal", {0: VICTIM}, "rank 1 on host b failed first: killed by signal 9"),
        (9, "Hydra, another", {0: VICTIM}, "rank 1 on host b failed first: killed by signal 9"),
        (3, "Hydra, another", {0: VICTIM}, "rank 1 on host b failed first: exit code 3"),
        (1, "", {0: VICTIM}, "rank 1 on host b failed first: exit code 1"),
    ],
)
def test_the_first_failure_is_named(code, lines, tails, expected):
    judged = mpi_output.judge(code, SAID.get(lines, ""), tails, Endings(HOSTS))
    assert judged.rank == 1
    assert expected in judged.text


def reported(*reports):
    endings = Endings(HOSTS)
    for report in reports:
        endings.record(encode(report))
    return endings


LEFT, LOST = Ending(0, "left", [1]), Ending(0, "lost", [1])


@pytest.mark.parametrize(
    ("lines", "reports", "expected"),
    [
        # Hydra names a process, and kills the others before they can report which rank they have lost.
        ("Hydra, signal", [Called(0, 76), Called(1, 77)], "rank 1 on host b failed first: killed by signal 9"),
        (None, [Called(0, 76), Called(1, 77), LOST], "rank 1 on host b failed first: exit code 3"),
        (None, [LOST, Ending(1, "own")], "rank 1 on host b failed first: exit code 1"),
        # The failure that mpirun noticed first was only a consequence.
        ("Open MPI, code", [Ending(1, "lost", [0])], "rank 0 on host a failed first: exit code 3"),
        (None, [LEFT], "rank 1 on host b failed first: exit code 3"),
    ],
)
def test_the_first_failure_is_found_from_reports(lines, reports, expected):
    """Reports suffice; stderr, which may be torn, translated or missing, is not needed."""
    judged = mpi_output.judge(3, SAID.get(lines, ""), {0: "", 1: ""}, reported(*reports))
    assert expected in judged.text


def test_ranks_of_this_machine_report(tmp_path, monkeypatch):
    """mpirun passes the address to the ranks, and their reports arrive."""
    program = (
        "import os, sys\nif '--version' in sys.argv: sys.exit(print('mpirun (Open MPI) 5.0.0'))\n"
        "assert sys.argv[sys.argv.index('HOROVOD_REPORT_PIPE') - 1] == '-x'\n"
        "path = os.environ['HOROVOD_REPORT_PIPE'].rpartition(':')[0]\n"
        f"open(path, 'wb').write({encode(Ending(1, 'own'))!r})\nsys.exit(1)"
    )
    fake(tmp_path, "mpirun", program)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    result = mpi.run_job(settings("-np", "2", "--mpi"), os.environ)
    assert (result.exit_code, result.failed_rank) == (1, 1)
    command, _ = mpi.prepare(settings("-np", "2", "--mpi", "-H", "n1:1,n2:1"), os.environ)
    assert "HOROVOD_REPORT_PIPE" not in command


def test_rankfile():
    text = mpi.rankfile(assign([Host("n1", 2), Host("n2", 1)], 3), {"n1": 8, "n2": 8})
    assert text.splitlines() == [
        "overlapping_rs: allow",
        "cpu_index_using: logical",
        "",
        "rank: 0: { hostname: n1; cpu: {0-3} ; gpu: * ; mem: * }",
        "rank: 1: { hostname: n1; cpu: {4-7} ; gpu: * ; mem: * }",
        "rank: 2: { hostname: n2; cpu: {0-7} ; gpu: * ; mem: * }",
    ]


def test_hosts_of_the_lsf_job():
    assert mpi.lsf_hosts(LSF) == [Host("n1", 4), Host("n2", 4)]
    assert mpi.lsf_hosts({"LSB_HOSTS": "batch n1 n1 n2"}) == [Host("batch", 1), Host("n1", 2), Host("n2", 1)]
    assert mpi.lsf_hosts({"LSB_MCPU_HOSTS": "n1 4 n2 2 n3"}) == [Host("n1", 4), Host("n2", 2)]  # truncated
    with pytest.raises(ValueError, match="LSB_MCPU_HOSTS"):
        mpi.lsf_hosts({})


def test_jsrun_outside_of_lsf_or_not_installed(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"--jsrun .* LSB_JOBID"):
        mpi.check({})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="needs the program jsrun"):
        mpi.check(LSF)


JSRUN = """
import os, sys
at = sys.argv.index("--erf_input")
path = sys.argv[at + 1]
assert os.stat(path).st_mode & 0o777 == 0o600
print("".join(f"[1,{n}]<stdout>:{line}\\n" for n, line in enumerate(open(path).read().split("\\n")[3:5])), end="")
assert "-E" in sys.argv and not any("secret" in word for word in sys.argv)
print(sys.argv[-2:], os.environ["SECRET"], os.environ["HOROVOD_CYCLE_TIME"])
sys.exit(4)
"""


def test_a_job_by_jsrun(tmp_path, monkeypatch, capfd):
    """Inside an LSF job jsrun is the default, and hosts and number of processes come from the job."""
    fake(tmp_path, "jsrun", JSRUN)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SECRET", "secret")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name, value in LSF.items():
        monkeypatch.setenv(name, value)
    namespace, command = cli.parse(["--cycle-time-ms", "4", "python", "x.py"])
    mpi.apply(namespace, os.environ)
    settings = cli.settings(namespace, command, {})
    assert (settings.jsrun, len(settings.slots)) == (True, 8)
    result = mpi.run_jsrun(settings, os.environ)
    out, err = capfd.readouterr()
    assert result.exit_code == 4
    assert "jsrun has ended: exit code 4" in result.message
    assert "[0]<stdout>:rank: 0: { hostname: n1; cpu: {0} ; gpu: * ; mem: * }" in out
    assert "['python', 'x.py'] secret 4" in err
    assert [path.name for path in tmp_path.iterdir()] == ["jsrun"], "the resource file is removed"


@pytest.mark.parametrize("flag", ["--gloo", "--mpi"])
def test_another_launcher_inside_lsf(tmp_path, monkeypatch, flag):
    fake(tmp_path, "jsrun", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    namespace, _ = cli.parse(["-np", "1", flag, "python"])
    mpi.apply(namespace, LSF)
    assert not namespace.jsrun
