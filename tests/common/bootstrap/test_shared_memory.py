"""Passing descriptors of shared memory to the ranks of a host."""

import os
import socket
import time

import pytest

from horovod.common.bootstrap import shared_memory


def test_descriptors_that_do_not_come():
    ours, theirs = socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        shared_memory.receive(theirs, 2, 0.2)
    assert time.monotonic() - begin < 20
    ours.sendall(b"d")
    with pytest.raises(OSError, match="were lost"):
        shared_memory.receive(theirs, 2, 1)
    bells = shared_memory.make_bells(3)
    shared_memory.send(ours, bells, 1)
    with pytest.raises(OSError, match="3 descriptors came instead of 2"):
        shared_memory.receive(theirs, 2, 1)
    shared_memory.close(bells)
    ours.close()
    with pytest.raises(ConnectionError, match="closed"):
        shared_memory.receive(theirs, 2, 1)
    assert len(os.listdir("/proc/self/fd")) == before - 1
    theirs.close()
