"""Who answers `horovodrun --explain`."""

import contextlib
import os
import socket
import threading

import pytest

from horovod.common.contract import reports
from horovod.runner.base.errors import LaunchError
from horovod.runner.command import explain


def test_only_what_the_processs_own_user_says_is_shown(monkeypatch):
    mine = os.getpid()
    monkeypatch.setattr(reports, "doors", lambda: [mine])  # not those of jobs that other tests have in workers
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(reports.door_of(mine))
        door.listen()

        def answer():
            for _ in range(2):
                connection, _ = door.accept()
                with connection, contextlib.suppress(BrokenPipeError):  # it may have gone again
                    connection.sendall(b"why\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert explain.run(str(mine)) == "why\n"
        owner = explain._user_of(mine)
        assert owner == os.geteuid()
        assert explain._user_of(2**30) is None
        monkeypatch.setattr(explain, "_user_of", lambda pid: owner + 1)
        with pytest.raises(LaunchError, match=f"pid {mine}\\) belongs to user {owner}, .* to user {owner + 1}; its"):
            explain.run(str(mine))
        thread.join(20)
