"""`horovodrun --mpi` with real launchers."""

import json
import signal
import subprocess
import sys

import pytest

from tests.launchers import programs
from tests.launchers.programs import WORKER

HOROVODRUN = [sys.executable, "-m", "horovod.runner"]


@pytest.fixture(params=["mpirun_path", "mpiexec_path"])
def path(request, tmp_path):
    """A PATH on which mpirun is one of the two; it excludes the environments' own python."""
    return programs.as_mpirun(tmp_path / "bin", request.getfixturevalue(request.param))


def run(path, tmp_path, *argv):
    env = programs.environment(PATH=path, TMPDIR=str(tmp_path), HOROVOD_START_TIMEOUT="60")
    return programs.run([*HOROVODRUN, "--mpi", *argv], env)


def test_a_job(path, tmp_path):
    # A variable before the command, as in a shell, also reaches the ranks.
    shell = ["IN_FRONT=it's $1", "sh", "-c", """test "$IN_FRONT" = "it's \\$1" && exec "$0" "$@" """]
    flags = ["-np", "2", "--cycle-time-ms", "2", "--output-filename", str(tmp_path / "out")]
    done = run(path, tmp_path, *flags, *shell, *WORKER)
    assert done.code == 0, done.text
    line = next(line for line in done.text.splitlines() if "ALL_RANKS" in line)
    assert line.startswith("[0]<stdout>:ALL_RANKS ")
    ranks = json.loads(line.split("ALL_RANKS ", 1)[1])
    assert [each["local"] for each in ranks] == [[0, 2], [1, 2]]
    assert all(each["mpi"] for each in ranks)
    assert "ALL_RANKS" in (tmp_path / "out/rank.0/stdout").read_text()


@pytest.mark.parametrize(
    ("fault", "messages"),
    [
        ("raise:1", ["rank 1 on host localhost failed first: exit code 1", "    ValueError: no more data"]),
        ("kill:1", ["rank 1 on host localhost failed first: killed by signal 9 (SIGKILL)"]),
    ],
)
def test_the_first_failure_is_named(path, tmp_path, fault, messages):
    done = run(path, tmp_path, "-np", "2", *WORKER, fault)
    assert done.code != 0
    lines = [line.removeprefix("horovodrun: ") for line in done.text.splitlines() if line.startswith("horovodrun: ")]
    assert any(line.startswith("mpirun has ended: exit code ") for line in lines)
    if fault == "raise:1" and ">:ValueError: no more data" not in done.text:
        messages = messages[:1]  # Hydra inserted its prefix into the line, which Python writes in parts
    for message in messages:
        assert any(line.startswith(message) for line in lines), done.text


def test_ranks_see_an_interrupt(path, tmp_path):
    """Without forwarding, mpirun would send SIGTERM and soon SIGKILL."""
    script = (
        "import os, signal, time\nfrom horovod.common import basics\nhvd = basics.HorovodBasics('tests')\nhvd.init()\n"
        "try: print('ready', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt: time.sleep(0.5); print('saved', hvd.rank(), flush=True)\n"
    )
    env = programs.environment(PATH=path, TMPDIR=str(tmp_path))
    command = [*HOROVODRUN, "--mpi", "-np", "2", sys.executable, "-c", script]
    job = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True)  # fmt: skip
    try:
        text = ""
        while text.count("ready") < 2:
            line = job.stdout.readline()
            assert line, text
            text += line
        job.send_signal(signal.SIGINT)
        lines, _ = job.communicate(timeout=programs.DEADLINE)
    finally:
        job.terminate()
        job.wait()
    assert job.returncode == 130
    assert all(f"saved {rank}" in lines for rank in (0, 1)), lines


def test_hosts_over_ssh(mpirun_path, cluster, tmp_path):
    programs.as_mpirun(tmp_path / "bin", mpirun_path, "--prefix", mpirun_path.parent.parent)
    env = {"TMPDIR": "/var/tmp", "PATH": f"{tmp_path}/bin:{cluster.launcher.environment()['PATH']}"}
    command = [*HOROVODRUN, "--mpi", "-np", "3", "-H", "host1:2,host2:1", "-p", "2222", *WORKER]
    done = cluster.launcher.run(command, env=env, timeout=programs.DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = json.loads(done.stdout.split("ALL_RANKS ", 1)[1].splitlines()[0])
    assert [(each["local"], each["cross"]) for each in ranks] == [([0, 2], [0, 2]), ([1, 2], [0, 1]), ([0, 1], [1, 2])]
