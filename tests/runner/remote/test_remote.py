"""Hosts reached by ssh, simulated on this machine: a program called ssh runs the command locally.

tests/cluster covers real ssh and hosts; these tests run everywhere.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

import horovod
from tests.runner.launching import eventually, executable, run_job, running

SSH = """#!/bin/sh
# The last word is the command, the one before it the host. Runs it here, and says how deep in the tree it is.
while [ $# -gt 2 ]; do shift; done
echo "Welcome to $1!"
if [ -n "$FAKE_SSH_ONLY_DIRECT" ] && [ -n "$FAKE_SSH_HOST" ]; then
  echo "root@$1: Permission denied (publickey)." >&2; exit 255
fi
cd /
exec env FAKE_SSH_PATH="$FAKE_SSH_PATH $FAKE_SSH_HOST" FAKE_SSH_HOST="$1" HOME="/home/of/$1" /bin/sh -c "$2"
"""

MEET = """
import os, sys
from horovod.common.store import StoreClient
from horovod.common.contract.worker_env import WorkerEnv
env = WorkerEnv.from_environ()
with StoreClient(env.job_key(), env.rendezvous_addr, env.rendezvous_port) as store:
    _, values = store.exchange("here", env.rank, env.size, os.urandom(200000 * (env.rank + 1)))
home, here = os.environ["HOME"], os.getcwd()
print("met", [len(value) // 200000 for value in values], env.hostname, home, here, len(sys.stdin.read()))
"""

# Says hello like an agent and then nothing more; ends with the first message it gets, unless it is mute.
HELLO = """#!{python}
import os, sys, time
sys.path.insert(0, {root!r})
from horovod.runner.agent import messages
import msgspec
hello = messages.Hello(msgspec.structs.replace(messages.gather(), **{changes!r}))
os.write(1, messages.MAGIC + messages.frame(hello))
if {mute!r}:
    time.sleep(60)
os.read(0, 1)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Path:
    """Put a folder with the fake ssh in front of PATH."""
    executable(tmp_path / "ssh", SSH)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def greeting_agent(folder: Path, mute: bool, **changes: object) -> str:
    path = folder / "python-there"
    root = str(Path(__file__).resolve().parents[3])
    path.write_text(HELLO.format(python=sys.executable, root=root, changes=changes, mute=mute))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("fanout", ["1", pytest.param("32", marks=pytest.mark.heavy)])
def test_workers_of_all_hosts_meet_in_the_store_through_the_agents(fake, fanout):
    done = run_job(
        ["-np", "3", "-H", "red.test:1,green.test:2", sys.executable, "-c", MEET],
        environment={"HOROVOD_SSH_FANOUT": fanout, "HOME": "/home/of/launcher"},
        stdin=b"y" * 1_000_000,
    )
    assert done.code == 0, done.err
    for rank, host in enumerate(["red", "green", "green"]):
        read = 0 if rank else 1_000_000
        assert f"[{rank}]<stdout>:met [1, 2, 3] {host}.test /home/of/{host}.test {os.getcwd()} {read}\n" in done.out
    assert "Welcome" not in done.out


@pytest.mark.heavy
def test_agents_form_a_tree_with_fallback_to_the_launcher(fake):
    code = "import os; print(os.environ['HOROVOD_HOSTNAME'], os.environ.get('X'))"
    arguments = ["-np", "3", "-H", "red.test:1,green.test:1,blue.test:1", sys.executable, "-c", code]
    for only_direct in (None, "1"):
        done = run_job(arguments, environment={"HOROVOD_SSH_FANOUT": "1", "FAKE_SSH_ONLY_DIRECT": only_direct})
        assert done.code == 0, done.err
        lines = sorted(line.split(":", 1)[1] for line in done.out.splitlines())
        assert lines == ["blue.test None", "green.test None", "red.test None"]


@pytest.fixture
def python_there(tmp_path) -> Path:
    """Provide this interpreter and its libraries under another path."""
    folder = tmp_path / "there"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    for part in ("pyvenv.cfg", "lib", "lib64"):
        if Path(sys.prefix, part).exists():
            (folder / part).symlink_to(Path(sys.prefix, part))
    return folder / "bin" / "python"


@pytest.mark.heavy
def test_functions_run_by_the_interpreter_of_their_host(fake, python_there, monkeypatch):
    def interpreter():
        import sys

        return sys.executable

    hostfile = fake / "hosts"
    hostfile.write_text(f"localhost slots=1\nred.test slots=1 python={python_there}\n")
    here, other = sys.executable, str(python_there)
    assert horovod.run(interpreter, num_proc=2, hostfile=str(hostfile)) == [here, other]
    monkeypatch.setenv("HOROVOD_REMOTE_PYTHON", other)
    names = "localhost:1,red.test:1"
    assert horovod.run(interpreter, num_proc=2, hosts=names) == [here, other]
    assert horovod.run(interpreter, num_proc=2, hosts=names, executable=here) == [here, here]


def test_a_python_missing_on_a_host_is_named(fake):
    done = run_job(["-np", "1", "-H", "red.test:1", "--remote-python", "/no/such/python", "true"])
    assert done.code == 1
    assert "host red.test (rank 0): Python does not start there" in done.err
    assert "/no/such/python" in done.err


@pytest.mark.heavy
def test_silent_hosts_are_lost_and_wrong_clocks_reported(fake):
    mute = greeting_agent(fake, True, clock=time.time() - 7200)
    done = run_job(
        ["-np", "2", "-H", "localhost:1,red.test:1", "--remote-python", mute, "sleep", "60"],
        environment={"HOROVOD_HEARTBEAT_TIMEOUT": "6"},
    )
    assert done.code == 1
    assert "warning: the clock of host red.test is 7" in done.err
    assert "s behind this one's" in done.err
    assert "host red.test (rank 1) is lost: no message from it for" in done.err


@pytest.mark.heavy
def test_agents_end_their_ranks_when_the_launcher_is_silent(fake):
    """Unlike Ctrl-Z, SIGSTOP cannot be announced."""
    arguments = ["-np", "2", "-H", "red.test:1,green.test:1", "sh", "-c", "echo ready; exec sleep 100"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_HEARTBEAT_TIMEOUT", "4")
        with running(arguments) as job:
            for _ in range(2):
                assert b"ready" in job.process.stdout.readline()
            os.kill(job.process.pid, signal.SIGSTOP)
            eventually(lambda: "sleep 100 " not in job.commands().values(), 60, "the workers end")
            os.kill(job.process.pid, signal.SIGCONT)
            assert job.finish().code != 0


def test_ctrl_c_reaches_ranks_on_other_hosts(fake):
    """Also ranks whose agent is reached through another agent."""
    code = (
        "import sys, time\nfrom horovod.common import basics\nhvd = basics.HorovodBasics('tests')\nhvd.init()\n"
        "try: print('ready', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt: time.sleep(1); print('saved', hvd.rank(), flush=True)\n"
    )
    arguments = ["-np", "2", "-H", "red.test:1,green.test:1", sys.executable, "-c", code]
    with running(arguments, environment={"HOROVOD_SSH_FANOUT": "1"}) as job:
        for _ in range(2):
            assert b"ready" in job.process.stdout.readline()
        os.kill(job.process.pid, signal.SIGINT)
        done = job.finish()
        assert done.code == 130
        assert sorted(done.out.splitlines()) == ["[0]<stdout>:saved 0", "[1]<stdout>:saved 1"]


@pytest.mark.parametrize("victim", [pytest.param("launcher", marks=pytest.mark.heavy), "parent"])
def test_kill_9_leaves_nothing_on_any_level_of_the_tree(fake, victim):
    arguments = ["-np", "2", "-H", "red.test:1,green.test:1", "sh", "-c", "echo ready; exec sleep 100"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_SSH_FANOUT", "1")
        with running(arguments) as job:
            for _ in range(2):
                assert b"ready" in job.process.stdout.readline()
            os.kill(job.process.pid if victim == "launcher" else job.agents()[1], signal.SIGKILL)
            eventually(lambda: job.left() == [], 60, "all processes end")
            if victim == "parent":
                done = job.finish()
                assert done.code != 0
                assert "host red.test (rank 0) is lost: its agent ended: exit code 137" in done.err
