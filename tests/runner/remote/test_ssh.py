"""The command that reaches a host, and the interpretation of its failures."""

import shlex
import sys

import pytest

from horovod.runner.remote import ssh
from horovod.runner.remote.ssh import Remote
from tests.runner.launching import executable


def test_ssh_commands_hold_only_options_of_the_user():
    command = ssh.ssh_command("host2", Remote(2222, "~/key", "/opt/python"), ask=False)
    assert command[0] == "ssh"
    assert command[command.index("-p") + 1] == "2222"
    assert command[command.index("-i") + 1].endswith("/key")
    assert "~" not in command[command.index("-i") + 1]
    assert "BatchMode=yes" in command
    assert "PasswordAuthentication=no" in command
    assert command[-3:-1] == ["--", "host2"]
    argv = shlex.split(command[-1])
    assert argv[:3] == ["exec", "/opt/python", "-c"]
    assert len(argv) == 5


def test_hosts_can_have_different_interpreters():
    assert "exec /special " in ssh.ssh_command("host2", Remote(python="/opt/python"), "/special", ask=False)[-1]
    assert f"exec {sys.executable} " in ssh.ssh_command("host2", Remote(), ask=False)[-1]


SSH = """#!/bin/sh
echo "asked about $*" >> "$0.log"
case "$3" in
plain) echo "hostname plain"; echo "StrictHostKeyChecking ask" ;;
strict) echo "user me"; echo "stricthostkeychecking yes" ;;
never) echo "stricthostkeychecking off"; exit 1 ;;
esac
"""


def test_the_users_rule_for_unknown_hosts_applies(tmp_path, monkeypatch):
    """If the configuration has no rule, the key of a new host is accepted."""
    fake = executable(tmp_path / "ssh", SSH)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ssh._has_own_rule.cache_clear()
    try:
        ssh.ask_rules(["plain", "strict"])
        log = tmp_path / "ssh.log"
        assert sorted(log.read_text().splitlines()) == ["asked about -G -- plain", "asked about -G -- strict"]

        def accepts(host, ask=True):
            return "StrictHostKeyChecking=accept-new" in ssh.ssh_command(host, Remote(), ask=ask)

        assert [accepts(host) for host in ("plain", "strict", "never", "silent")] == [True, False, False, True]
        assert len(log.read_text().splitlines()) == 4  # each is queried once
        assert accepts("strict", ask=False)  # that command runs elsewhere
        ssh._has_own_rule.cache_clear()
        fake.unlink()
        monkeypatch.setenv("PATH", str(tmp_path))
        assert accepts("strict")  # without ssh, the later command reports it
    finally:
        ssh._has_own_rule.cache_clear()


@pytest.mark.parametrize(
    ("status", "output", "what", "advice", "again"),
    [
        (255, "root@host2: Permission denied (publickey).", "refuses this user or key", "-p 22 host2 true", False),
        (255, "ssh: Could not resolve hostname host2: Name or service not known", "cannot be resolved", "-H", False),
        (255, "ssh: connect to host host2 port 22: Connection refused", "connection refused", "-p", True),
        (255, "ssh: connect to host host2 port 22: Connection timed out", "Connection timed out", "firewall", True),
        (255, "ssh: connect to host host2 port 22: No route to host", "No route to host", "up", True),
        (
            255,
            "No ED25519 host key is known for host2 and you have requested strict checking.\n"
            "Host key verification failed.",
            "not known",
            "known_hosts",
            False,
        ),
        (255, "Host key verification failed.", "does not match the known one", "ssh-keygen -R host2", False),
        (255, "kex_exchange_identification: Connection closed by remote host", "closed", "MaxStartups", True),
        (127, "bash: line 1: /opt/py: No such file or directory", "Python does not start", "--remote-python", False),
        (1, "Traceback ...\nModuleNotFoundError: No module named 'horovod'", "has no horovod", "install", False),
        (3, "something\nnew", "new", "its complete output:\nsomething\nnew", False),
    ],
)
def test_failures_are_explained(status, output, what, advice, again):
    failure = ssh.explain(status, output, "host2", Remote(port=22))
    assert what in failure.what
    assert advice in failure.advice
    assert failure.again is again
