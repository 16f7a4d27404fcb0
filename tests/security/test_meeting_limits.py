"""What strangers can take of processes that look for each other, and of the one that they look for."""

import contextlib
import os
import socket
import threading

import pytest
import zmq

from horovod.common.launchers import handover, search
from horovod.common.worker_env import make_key

SECONDS = 60.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE".ljust(23, b"\0") + bytes(32)
HUGE = b"\x06" + (1 << 30).to_bytes(8, "big")  # ZMTP: a long command of that many bytes follows


class Until(float):
    """A deadline that passes when something has happened."""

    def __new__(cls, event):
        made = super().__new__(cls, 0.0)
        made.event = event
        return made

    def __sub__(self, now):
        return 0.0 if self.event.is_set() else 0.05


def ask(where, deadline):
    search.ask(lambda: [where], make_key(), deadline)


def receive(where, deadline):
    handover.receive([where], os.urandom(32), zmq.curve_keypair(), 1, deadline)


@pytest.mark.parametrize("look", [ask, receive])
def test_who_is_not_rank_0_cannot_fill_a_rank_that_looks_for_it(look):
    """It announces a gigabyte before it has shown any key, and is not listened to any longer."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        looking = threading.Thread(target=look, args=(listener.getsockname(), Until(done)))
        looking.start()
        try:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(ConnectionError):
                # ZeroMQ itself hangs up after 30 s.
                sock.settimeout(20)
                sock.sendall(GREETING + HUGE)
                while sock.recv(1000):
                    pass
        finally:
            done.set()
            looking.join()
