"""Environment variables passed to workers on other hosts, and display of the workers' output."""

from __future__ import annotations

import sys

from tests.cluster.jobs import run_job
from tests.testbed.cluster import Cluster

SHOW = "import os; print({name: os.environ.get(name) for name in %r.split()})"


def environments(cluster: Cluster, *flags: str) -> list[dict[str, str | None]]:
    """Return the environments of rank 0, on the launcher's host, and rank 1, on another."""
    names = "KEPT SECRET_A TMPDIR SSH_AUTH_SOCK DISPLAY HOME USER PWD LANG"
    environ = {
        "KEPT": "k",
        "SECRET_A": "s",
        "TMPDIR": "/launchers/tmp",
        "SSH_AUTH_SOCK": "/launchers/agent",
        "DISPLAY": "launcher:0",
        "USER": "launchers-name",
        "PWD": "/launchers",
        "LANG": "C.UTF-8",
    }
    hosts = ["-np", "2", "-H", "host1:1,host2:1"]
    done = run_job(cluster, *hosts, *flags, sys.executable, "-c", SHOW % names, env=environ)
    assert (done.code, done.complaints) == (0, "")
    shown = sorted(done.lines)
    assert [line.partition(":")[0] for line in shown] == ["[0]<stdout>", "[1]<stdout>"]
    return [eval(line.partition(":")[2]) for line in shown]


def test_launcher_machine_variables_are_not_forwarded(cluster: Cluster) -> None:
    near, far = environments(cluster)
    assert (near["TMPDIR"], near["DISPLAY"], near["USER"]) == ("/launchers/tmp", "launcher:0", "launchers-name")
    assert (far["KEPT"], far["SECRET_A"], far["LANG"]) == ("k", "s", "C.UTF-8")
    assert (far["DISPLAY"], far["SSH_AUTH_SOCK"]) == (None, None)
    # set by the host's own login
    assert far["TMPDIR"] == "/var/tmp"
    assert far["HOME"] is not None
    assert far["USER"] not in (None, "launchers-name")
    assert far["PWD"] != "/launchers"
