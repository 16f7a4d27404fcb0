import socket
import threading
import time

import pytest

from horovod.common.security.channel import Talk
from horovod.runner.remote.arrived import ArrivedConnection


@pytest.fixture
def ends():
    """Return both ends of an encrypted connection."""
    here, far = socket.socketpair()
    sockets = []
    thread = threading.Thread(target=lambda: sockets.append(Talk(far, accepts=True, seconds=120)))
    thread.start()
    talk = Talk(here, accepts=False, seconds=120)
    thread.join(120)
    one, other = (ArrivedConnection(each.sock, each.channel, each.rest) for each in (talk, sockets[0]))
    yield one, other
    for each in (one, other):
        each.kill()
        each.end(time.monotonic())


def read(one, count, other=None):
    end, data = time.monotonic() + 300, bytearray()
    while len(data) < count and not one.ended:
        assert time.monotonic() < end
        data += one.read()
        if other is not None:
            other.flush()
    return data


def test_bytes_in_both_directions_and_slow_readers(ends):
    one, other = ends
    one.write(b"spam")
    assert read(other, 4) == b"spam"
    large = bytes(range(256)) * 40_000
    other.write(large)
    assert other.pending > 0
    assert other.events(listening=False)
    assert read(one, len(large), other) == large
    assert other.pending == 0
    assert other.events(listening=False) == {}


def test_altered_bytes_end_the_connection(ends):
    one, other = ends
    one._sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert read(other, 1) == b""
    assert other.ended
    assert "altered" in other.stderr_tail
