"""Which processes answer `horovodrun --explain`."""

import contextlib
import os
import socket
import threading

import pytest

from horovod.common.contract import kernel, reports
from horovod.runner.base.job_result import LaunchError
from horovod.runner.command import explain


@contextlib.contextmanager
def answering(name, text=b"why\n"):
    """Open a socket of this process that answers each connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(name)
        listener.listen()

        def reply():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(BrokenPipeError):  # the client may have disconnected
                        connection.sendall(text)

        thread = threading.Thread(target=reply, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)


@pytest.fixture
def only_own_sockets(monkeypatch):
    """Hide the sockets of jobs that other tests run in workers."""
    sockets = reports.sockets
    monkeypatch.setattr(reports, "sockets", lambda: [one for one in sockets() if one[0] == os.getpid()])


def test_only_replies_of_the_process_owner_are_shown(monkeypatch, only_own_sockets):
    own = os.getpid()
    with answering(reports.new_socket_name()):
        assert explain.run(str(own)) == "why\n"
        owner = explain._user_of(own)
        assert owner == os.geteuid()
        assert explain._user_of(2**30) is None
        monkeypatch.setattr(explain, "_user_of", lambda pid: owner + 1)
        with pytest.raises(LaunchError, match=f"pid {own}\\) is not that process, but process {own} of user {owner};"):
            explain.run(str(own))


def test_a_socket_without_an_owner_belongs_to_a_stranger(monkeypatch):
    """For example a process of another container, which has no pid here, or other namespaces."""
    one, other = socket.socketpair()
    with one, other:
        assert kernel.is_this_user_or_root(one)
        uid = os.geteuid()
        for pid, user, expected in (
            (0, uid, False),
            (0, 0, False),
            (os.getpid(), uid + 1, False),
            (os.getpid(), 0, True),
        ):
            monkeypatch.setattr(kernel, "peer_credentials", lambda sock, found=(pid, user, 0): found)
            assert kernel.is_this_user_or_root(one) == expected
        monkeypatch.setattr(kernel, "peer_credentials", lambda sock: (os.getpid(), 4242, 0))
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        assert kernel.is_this_user_or_root(one)
        monkeypatch.setattr(kernel, "_namespace", lambda process, kind: process + kind)
        assert not kernel.is_this_user_or_root(one)
