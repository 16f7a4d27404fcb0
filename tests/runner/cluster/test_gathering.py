import os
import socket
import threading
from contextlib import ExitStack

import pytest

from horovod.runner.cluster import Gathering, gathering


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def connect(gathering):
    endpoint = next(each for each in gathering.ticket.endpoints if each.loopback)
    return socket.create_connection((endpoint.address, endpoint.port), 5)


def is_disconnected(sock, seconds):
    sock.settimeout(seconds)
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_failed_starts_leave_nothing_behind(monkeypatch):
    def fails(_):
        raise RuntimeError("can't start new thread")

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError, match="new thread"):
            Gathering("task")
    assert descriptors() == before


def test_strangers_time_out_and_free_their_places(monkeypatch):
    monkeypatch.setattr(gathering, "_MAX_CONNECTIONS", 3)
    monkeypatch.setattr(gathering, "_TIME_OF_ITS_OWN", 0.6)
    with Gathering("task") as server, ExitStack() as strangers:
        held = [strangers.enter_context(connect(server)) for _ in range(4)]
        assert not is_disconnected(held[0], 0.2)
        assert is_disconnected(held[0], 5)
        assert not is_disconnected(held[3], 0.2)
