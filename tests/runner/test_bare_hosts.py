"""Hosts that lack something a job needs: an error names it."""

import subprocess
import sys

import pytest

from tests.runner.launching import LIMIT, launcher, marked_environment


def run(*before: str) -> str:
    """Return the output of a job of two processes whose launcher is started by this command prefix."""
    done = subprocess.run(
        [*before, *launcher(["-np", "2", sys.executable, "-c", "print(1)"])],
        env=marked_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if "unshare: " in done.stderr or "mount: " in done.stderr:
        pytest.skip("namespaces are not permitted")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def within(kind: str, script: str) -> list[str]:
    """Return the command prefix that starts a program in new namespaces, after a line of shell."""
    return ["unshare", kind, "sh", "-c", f'{script}; exec "$@"', "sh"]


def test_no_loopback_address():
    said = run(*within("-n", "ip link set lo up; ip addr del 127.0.0.1/8 dev lo"))
    assert "error: this machine's loopback interface has no address 127.0.0.1 (" in said
    assert "`ip addr add 127.0.0.1/8 dev lo`, as root, gives it one" in said


def test_no_proc():
    said = run(*within("-m", "mount -t tmpfs none /proc"))
    assert "the agent on host localhost (ranks 0-1) ends the job: /proc is not mounted there, by which" in said


def test_few_descriptors():
    said = run("sh", "-c", 'ulimit -n 20; exec "$@"', "sh")
    assert "cannot be started: Too many open files; this process may have 20 open (ulimit -n), and needs more" in said
