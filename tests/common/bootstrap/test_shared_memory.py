"""Passing descriptors of shared memory to the ranks of a host."""

import os
import socket
import threading
import time

import pytest

from horovod.common.bootstrap import shared_memory


def test_descriptors_travel_in_batches():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made = shared_memory.make(8192, 250)
        sender = threading.Thread(target=shared_memory.send, args=(ours, made, 30))
        sender.start()
        received = shared_memory.receive(theirs, 251, 30)
        sender.join(30)
        assert os.fstat(received[0]).st_ino == os.fstat(made[0]).st_ino
        assert not any(os.get_inheritable(fd) for fd in received)
        os.pwrite(made[0], b"shared", 100)
        assert os.pread(received[0], 6, 100) == b"shared"
        for index, fd in enumerate(made[1:]):
            os.eventfd_write(fd, index + 1)
        assert [os.eventfd_read(fd) for fd in received[1:]] == list(range(1, 251))
        with pytest.raises(OSError):
            os.ftruncate(received[0], 0)
        shared_memory.close(made + received)


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
