"""jsrun: its resource file, the hosts of an LSF job, and a job by a fake jsrun."""

import os

import pytest

from horovod.runner.command import cli
from horovod.runner.external_launchers import jsrun
from horovod.runner.plan.hosts import Host, assign
from tests.runner.external_launchers.fakes import LSF, fake


def test_rankfile():
    text = jsrun.rankfile(assign([Host("n1", 2), Host("n2", 1)], 3), {"n1": 8, "n2": 8})
    assert text.splitlines() == [
        "overlapping_rs: allow",
        "cpu_index_using: logical",
        "",
        "rank: 0: { hostname: n1; cpu: {0-3} ; gpu: * ; mem: * }",
        "rank: 1: { hostname: n1; cpu: {4-7} ; gpu: * ; mem: * }",
        "rank: 2: { hostname: n2; cpu: {0-7} ; gpu: * ; mem: * }",
    ]


def test_hosts_of_the_lsf_job():
    assert jsrun.lsf_hosts(LSF) == [Host("n1", 4), Host("n2", 4)]
    assert jsrun.lsf_hosts({"LSB_HOSTS": "batch n1 n1 n2"}) == [Host("batch", 1), Host("n1", 2), Host("n2", 1)]
    assert jsrun.lsf_hosts({"LSB_MCPU_HOSTS": "n1 4 n2 2 n3"}) == [Host("n1", 4), Host("n2", 2)]  # truncated
    with pytest.raises(ValueError, match="LSB_MCPU_HOSTS"):
        jsrun.lsf_hosts({})


def test_jsrun_outside_of_lsf_and_without_the_program(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"--jsrun .* LSB_JOBID"):
        jsrun.check({})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="needs the program jsrun"):
        jsrun.check(LSF)


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
    jsrun.apply(namespace, os.environ)
    made = cli.settings(namespace, command, {})
    assert (made.jsrun, len(made.slots)) == (True, 8)
    result = jsrun.run_job(made, os.environ)
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
    jsrun.apply(namespace, LSF)
    assert not namespace.jsrun
