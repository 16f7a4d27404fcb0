"""Errors if the native engine and the Python files are of different source versions."""

import dataclasses
import os
import socket
import time

import pytest

from horovod.common.basics import HorovodBasics
from horovod.common.bootstrap import engine_start


def test_a_native_engine_without_a_setting_is_reported_as_older(monkeypatch):
    first = engine_start.TABLE[0]
    newer = dataclasses.replace(first, engine="of_tomorrow")
    monkeypatch.setattr(engine_start, "TABLE", (newer,))
    with pytest.raises(ImportError, match=r"_core.*older than the Python files.*of_tomorrow.*install the package"):
        HorovodBasics("tests").init()


def test_missing_descriptors():
    local, peer = socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        engine_start.receive(peer, 2, 0.2)
    assert time.monotonic() - begin < 20
    local.sendall(b"d")
    with pytest.raises(OSError, match="were lost"):
        engine_start.receive(peer, 2, 1)
    bells = engine_start.make_bells(3)
    engine_start.send(local, bells, 1)
    with pytest.raises(OSError, match="3 descriptors came instead of 2"):
        engine_start.receive(peer, 2, 1)
    engine_start.close(bells)
    local.close()
    with pytest.raises(ConnectionError, match="closed"):
        engine_start.receive(peer, 2, 1)
    assert len(os.listdir("/proc/self/fd")) == before - 1
    peer.close()
