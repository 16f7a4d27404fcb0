"""Which processes answer `horovodrun --explain`."""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading

import pytest

from horovod.common.contract import descriptors, reports
from horovod.runner.base.errors import LaunchError
from horovod.runner.command import explain


@contextlib.contextmanager
def answering(name, text=b"why\n"):
    """Open a socket of this process that answers each connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(name)
        door.listen()

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = door.accept()
                    with connection, contextlib.suppress(BrokenPipeError):  # the client may have disconnected
                        connection.sendall(text)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join(20)


@pytest.fixture
def only_mine(monkeypatch):
    """Hide the sockets of jobs that other tests run in workers."""
    doors = reports.doors
    monkeypatch.setattr(reports, "doors", lambda: [door for door in doors() if door[0] == os.getpid()])


def test_only_what_the_processs_own_user_says_is_shown(monkeypatch, only_mine):
    mine = os.getpid()
    with answering(reports.new_door()):
        assert explain.run(str(mine)) == "why\n"
        owner = explain._user_of(mine)
        assert owner == os.geteuid()
        assert explain._user_of(2**30) is None
        monkeypatch.setattr(explain, "_user_of", lambda pid: owner + 1)
        with pytest.raises(
            LaunchError, match=f"pid {mine}\\) is not that process, but process {mine} of user {owner};"
        ):
            explain.run(str(mine))


def test_names_that_other_processes_have_taken(only_mine):
    """Names may contain digits that `int` does not accept, or claim to be of this process."""
    mine = os.getpid()
    taken = f"\0horovod-explain-{mine}-{'0' * 16}"
    code = (
        "import socket, sys, time\n"
        "for name in sys.argv[1:]:\n"
        "    door = socket.socket(socket.AF_UNIX); door.bind('\\0' + name); door.listen(0)\n"
        "    globals()[name] = door\n"
        "print('all', flush=True); sys.stdin.read()\n"
    )
    names = ["horovod-explain-²", "horovod-explain-", "horovod-explain-\u0661-0", taken[1:]]
    words = [sys.executable, "-c", code, *names]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as stranger:
        for line in stranger.stdout:
            if line == "all\n":
                break
        assert reports.doors() == [(mine, taken)]
        with pytest.raises(LaunchError, match=f"is not that process, but process {stranger.pid} of user"):
            explain.run(str(mine))
        with answering(reports.new_door()):
            assert explain.run(str(mine)) == "why\n"
        stranger.stdin.close()


def test_a_stranger_that_claims_to_be_another_rank(monkeypatch):
    """Of all processes that a target matches, only the one that created the socket is asked."""
    mine, other = os.getpid(), os.getppid()
    claimed = f"\0horovod-explain-{other}-{secrets.token_hex(8)}"
    monkeypatch.setattr(explain, "find", lambda target, doors: [pid for pid in doors if pid in (mine, other)])
    with answering(reports.new_door()), answering(claimed, b"a lie\n"):
        assert explain.run(str(mine)) == "why\n"


def test_a_socket_of_which_no_more_is_known_is_of_a_stranger(monkeypatch):
    """For example a process of another container, which has no pid here, or other namespaces."""
    one, other = socket.socketpair()
    with one, other:
        assert descriptors.is_this_user_or_root(one)
        uid = os.geteuid()
        for pid, user, expected in (
            (0, uid, False),
            (0, 0, False),
            (os.getpid(), uid + 1, False),
            (os.getpid(), 0, True),
        ):
            monkeypatch.setattr(descriptors, "peer_credentials", lambda sock, found=(pid, user, 0): found)
            assert descriptors.is_this_user_or_root(one) == expected
        monkeypatch.setattr(descriptors, "peer_credentials", lambda sock: (os.getpid(), 4242, 0))
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        assert descriptors.is_this_user_or_root(one)
        monkeypatch.setattr(descriptors, "_namespace", lambda process, kind: process + kind)
        assert not descriptors.is_this_user_or_root(one)
