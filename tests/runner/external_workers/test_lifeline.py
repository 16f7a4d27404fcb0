"""Resources left by liveness connections that cannot start, or do not end."""

import os
import socket
import time

import pytest
import zmq

from horovod.common.contract.worker_env import make_key
from horovod.common.store.sockets import listen
from horovod.runner.external_workers import liveness
from horovod.runner.external_workers.liveness import LivenessServer


def eventfds():
    links = []
    for each in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{each}"))
        except FileNotFoundError:  # the one of listdir itself
            pass
    return sum("eventfd" in link for link in links)


def test_lines_that_cannot_begin_leave_nothing_open():
    line, pulses = listen("127.0.0.1"), socket.socket(socket.AF_UNIX)  # has no port
    before = eventfds()
    with pytest.raises(ValueError, match="unpack") as caught:
        LivenessServer(line, pulses, make_key(), 4.0, lambda number, how: None)
    assert (line.fileno(), pulses.fileno()) == (-1, -1)
    assert eventfds() == before, caught


def test_signs_of_life_end_within_their_time(monkeypatch):
    monkeypatch.setattr(liveness, "_CLOSE", 0.5)
    with listen("127.0.0.1") as deaf:
        answering = liveness.HeartbeatClient("127.0.0.1", deaf.getsockname()[1], make_key(), 0)
        held = answering._context.socket(zmq.DEALER)  # the context does not end while it is open
        begun = time.monotonic()
        answering.close()
        assert 0.4 < time.monotonic() - begun < 5.0
        held.close(linger=0)
