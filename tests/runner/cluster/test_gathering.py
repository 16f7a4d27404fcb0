import os
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from horovod.common.security import channel
from horovod.common.security.auth import AuthError
from horovod.runner.cluster import Gathering, gathering


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def connect(gathering):
    endpoint = next(each for each in gathering.ticket.endpoints if each.loopback)
    return socket.create_connection((endpoint.address, endpoint.port), 5)


def wait_until(there):
    until = time.monotonic() + 60
    while not there():
        assert time.monotonic() < until
        time.sleep(0.01)


def hung_up(sock, seconds):
    sock.settimeout(seconds)
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_a_python_that_cannot_encrypt_is_named_at_once(monkeypatch):
    monkeypatch.setattr(channel, "_CIPHER", "NO-SUCH-CIPHER")
    before = descriptors()
    with pytest.raises(AuthError, match="does not allow NO-SUCH-CIPHER"):
        Gathering("task")
    assert descriptors() == before


def test_nothing_is_left_when_it_cannot_begin(monkeypatch):
    def fails(_):
        raise RuntimeError("can't start new thread")

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError, match="new thread"):
            Gathering("task")
    assert descriptors() == before


def test_an_interrupt_while_it_closes_leaves_nothing():
    before = descriptors()
    made = Gathering("task")

    def interrupted(seconds):
        raise KeyboardInterrupt

    with connect(made) as visitor:
        wait_until(lambda: made._visits)
        (visit,) = made._visits.values()
        visit.thread.join, join = interrupted, visit.thread.join
        with pytest.raises(KeyboardInterrupt):
            made.close()
        assert hung_up(visitor, 5)
        join(5)
    assert not made._thread.is_alive()
    assert descriptors() == before


def test_strangers_have_their_time_and_then_make_room(monkeypatch):
    monkeypatch.setattr(gathering, "_MOST", 3)
    monkeypatch.setattr(gathering, "_TIME_OF_ITS_OWN", 0.6)
    with Gathering("task") as made, ExitStack() as strangers:
        held = [strangers.enter_context(connect(made)) for _ in range(4)]
        assert not hung_up(held[0], 0.2)
        assert hung_up(held[0], 5)
        assert not hung_up(held[3], 0.2)


def test_a_wait_may_be_longer_than_poll_can():
    with Gathering("task") as made:
        threading.Timer(0.2, made.fail, [RuntimeError("the cluster is on fire")]).start()
        with pytest.raises(RuntimeError, match="on fire"):
            made.wait(1, 1e9, "")
