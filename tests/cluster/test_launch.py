"""horovodrun on several hosts over ssh: placement of ranks, what reaches the workers, output, and errors."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster.jobs import WORKER, Done, run_job, running
from tests.testbed.cluster import Cluster
from tests.testbed.hosts import HOME, make_key

PLACE = ["bash", "-c", "echo $HOROVOD_RANK $(hostname) $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK"]


def places(done: Done) -> list[str]:
    assert done.code == 0, done.err
    return [line.partition(":")[2] for line in done.lines]


def test_a_host_file_from_a_machine_outside_the_job(cluster: Cluster, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# the cluster\nhost4 slots=1\nhost1 slots=1\n\nhost4 slots=1\n")
    done = run_job(cluster, "-np", "3", "--hostfile", hostfile, *PLACE, on=cluster.desk)
    assert places(done) == ["0 host4 0/2 0", "1 host4 1/2 0", "2 host1 0/1 1"]
    assert done.complaints == ""


@pytest.mark.smoke
def test_workers_on_all_hosts_meet(cluster: Cluster) -> None:
    done = run_job(cluster, "-np", "4", "-H", "host1:2,host2:1,host3:1", *WORKER, "--steps", "5")
    assert (done.code, done.complaints) == (0, "")
    assert done.out.count("done after 5 steps") == 4


def test_environment_of_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    """Directory, variables (including those before the command) and arguments; standard input for rank 0 alone."""
    names = "[os.environ.get(name) for name in ('WITH', 'IN_FRONT')]"
    program = f"import os, sys; print([os.getcwd(), {names}, sys.argv[1:], sys.stdin.read()])"
    arguments = ["two words", "$HOME", "'", "", "ü", "-H", "a\nb"]
    done = run_job(
        cluster,
        *["-np", "2", "-H", "host2:1,host3:1", "IN_FRONT=it's $1", sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env={"WITH": "spaces and 'quotes' ü"},
        input="given",
    )
    assert done.code == 0, done.err
    expected = [str(tmp_path), ["spaces and 'quotes' ü", "it's $1"], arguments]
    assert [eval(line) for line in places(done)] == [[*expected, "given"], [*expected, ""]]


# Use of ssh


def test_port_and_identity_file(cluster: Cluster) -> None:
    """Use the second port of the test bed's servers, and a key that is not the default one."""
    key, public = make_key("another")
    for host in (cluster.desk, cluster.host(3)):
        host.path(f"{HOME}/.ssh/id_ed25519").unlink()
        other = host.path(f"{HOME}/other key")
        other.write_text(key)
        other.chmod(0o600)
    cluster.host(3).path(f"{HOME}/.ssh/authorized_keys").write_text(public)
    command = ["-np", "1", "-H", "host3:1", "-p", "2222", "-i", f"{HOME}/other key", *PLACE]
    assert places(run_job(cluster, *command, on=cluster.desk, clean=False)) == ["0 host3 0/1 0"]
    log = cluster.host(3).path("/run/bed/sshd.log").read_text()
    assert "Accepted publickey" in log.splitlines()[-1] or "Accepted publickey" in log


def test_the_users_configuration_of_ssh(cluster: Cluster) -> None:
    """Use an alias with its own port, and an existing connection of the user: jobs share it and leave it open."""
    sharing = f"ControlMaster auto\n  ControlPath {HOME}/.ssh/shared-%C\n  ControlPersist 300\n"
    config = f"Host node\n  HostName 10.77.0.2\n  Port 2222\n  {sharing}"
    cluster.desk.path(f"{HOME}/.ssh/config").write_text(config)
    log = cluster.host(2).path("/run/bed/sshd.log")
    before = log.read_text().count("Accepted publickey")
    places_of_jobs = []
    assert cluster.desk.run("ssh node true").returncode == 0
    for _ in range(2):
        places_of_jobs += places(run_job(cluster, "-np", "1", "-H", "node:1", *PLACE, on=cluster.desk, clean=False))
    assert places_of_jobs == ["0 host2 0/1 0"] * 2
    assert log.read_text().count("Accepted publickey") == before + 1
    assert cluster.desk.run("ssh -O check node").returncode == 0


def test_noisy_shells(cluster: Cluster) -> None:
    for name in (".bashrc", ".profile"):
        cluster.host(2).path(f"{HOME}/{name}").write_text("echo 'Welcome!'; echo 'Maintenance on Sunday' >&2\n")
    done = run_job(cluster, "-np", "2", "-H", "host1:1,host2:1", *PLACE, clean=False)
    assert places(done) == ["0 host1 0/1 0", "1 host2 0/1 1"]
    assert "Welcome" not in done.out


# Errors: named within 10 s, by host, with what to try


def failing(cluster: Cluster, *arguments: str, **options: object) -> str:
    done = run_job(cluster, *arguments, clean=False, **options)
    assert done.code != 0
    assert "Traceback" not in done.err
    return "\n".join(done.messages)


def test_ssh_key_not_accepted(cluster: Cluster) -> None:
    cluster.host(2).path(f"{HOME}/.ssh/authorized_keys").write_text("")
    output = failing(cluster, "-np", "2", "-H", "host1:1,host2:1", *PLACE)
    assert "host2" in output
    assert "ssh refuses this user or key" in output


def test_changed_host_key(cluster: Cluster) -> None:
    _, public = make_key("somebody else")
    known = cluster.launcher.path(f"{HOME}/.ssh/known_hosts")
    kept = [line for line in known.read_text().splitlines() if not line.startswith("host2,")]
    known.write_text("\n".join([*kept, f"host2,10.77.0.2 {public}"]))
    output = failing(cluster, "-np", "2", "-H", "host1:1,host2:1", *PLACE)
    assert "host2" in output
    assert "ssh-keygen -R host2" in output


def test_unknown_host_name(cluster: Cluster) -> None:
    assert "nowhere" in failing(cluster, "-np", "2", "-H", "host1:1,nowhere:1", *PLACE)


def test_missing_python_on_the_host(cluster: Cluster) -> None:
    """The interpreter's folder is hidden on host2."""
    output = with_hidden(cluster, sys.prefix)
    assert "host host2 (rank 1)" in output
    assert "Python does not start there" in output


def with_hidden(cluster: Cluster, folder: str) -> str:
    """Return the error of a job whose second host sees an empty folder at this path."""
    host = cluster.host(2)
    assert host.run(["mount", "-t", "tmpfs", "tmpfs", folder]).returncode == 0
    try:
        return failing(cluster, "-np", "2", "-H", "host1:1,host2:1", *PLACE)
    finally:
        assert host.run(["umount", "-l", folder]).returncode == 0


@pytest.mark.heavy  # waits
def test_a_shell_that_refuses_or_hangs(cluster: Cluster) -> None:
    accounts = cluster.host(2).path("/run/bed/etc-passwd")
    usual = accounts.read_text()
    try:
        accounts.write_text(usual.replace("/bin/bash", "/usr/sbin/nologin", 1))
        output = failing(cluster, "-np", "2", "-H", "host1:1,host2:1", *PLACE)
    finally:
        accounts.write_text(usual)
    assert "host host2 (rank 1): the agent there did not start: This account is currently not available." in output
    cluster.host(2).path(f"{HOME}/.bashrc").write_text("sleep 600\n")
    output = failing(cluster, "-np", "2", "-H", "host1:1,host2:1", "--start-timeout", "12", *PLACE)
    assert "from host host2 (rank 1)\n" in output
    assert "`ssh host2 true`" in output


# Secrets


def test_command_lines_hold_no_secrets(cluster: Cluster, tmp_path: Path) -> None:
    """Neither the job's key nor the value of a forwarded variable is on any command line.

    The key is in no environment, the value only in the workers'.
    """
    value = "s3cret-of-the-user"
    report = "import os, sys; sys.stderr.write(os.pread(int(os.environ['HOROVOD_KEY_FD']), 99, 0).hex() + '\\n')"
    program = f"{sys.executable} -c {shlex.quote(report)}; exec sleep 600"
    env = {"MY_TOKEN": value, "HOROVOD_SSH_FANOUT": "1"}
    hosts = "host2:1,host3:1,host4:1"
    with running(cluster, tmp_path, "-np", "3", "-H", hosts, "bash", "-c", program, on=cluster.desk, env=env) as job:
        machines = [cluster.desk, *cluster.hosts]
        job.wait_for(
            lambda: sum(line == "sleep 600" for host in machines for line in host.processes().values()) == 3,
            "three workers that sleep",  # by then, the processes that printed their keys have ended
        )
        pattern = re.compile(r"^\[\d\]<stderr>:([0-9a-f]+)$", re.MULTILINE)
        job.wait_for(lambda: len(pattern.findall(job.err)) == 3, "three keys")
        keys = set(pattern.findall(job.err))
        assert len(keys) == 1
        key = keys.pop()
        assert len(key) >= 64
        spellings = [bytes.fromhex(key), key.encode(), key.upper().encode()]
        seen = 0
        for host in machines:
            for pid, line in host.processes().items():
                try:
                    environment = Path(f"/proc/{pid}/environ").read_bytes()
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:  # the process has ended meanwhile
                    continue
                seen += 1
                assert value.encode() not in command, line
                for spelling in spellings:
                    assert spelling not in command, line
                    assert spelling not in environment, line
                if value.encode() in environment and host is not cluster.desk:
                    assert "sleep 600" in line
        assert seen >= 3 * 4
        job.process.send(signal.SIGINT)
        assert job.finish().code == 130
    assert value not in job.err + job.out
    assert not [name for host in cluster.hosts for name in host.files() if key in _content(host.path(name))]


def _content(path: Path) -> str:
    try:
        return path.read_bytes().hex() + path.read_text(errors="replace")
    except OSError:
        return ""
