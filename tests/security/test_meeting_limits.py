"""Resources that strangers can take from processes that look for rank 0, and from rank 0."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
import zmq
import zmq.utils.z85

from horovod.common.contract.worker_env import make_key
from horovod.common.key_exchange import curve_exchange, search
from horovod.common.store import StoreClient, StoreTimeout
from tests.security.test_store_limits import GREETING, LONG_COMMAND, descriptors, strangers

SECONDS = 60.0
LARGE = LONG_COMMAND + (1 << 20).to_bytes(8, "big")


class Until(float):
    """A deadline that passes when an event has happened."""

    def __new__(cls, event):
        instance = super().__new__(cls, 0.0)
        instance.event = event
        return instance

    def __sub__(self, now):
        return 0.0 if self.event.is_set() else 0.05


def ask(addresses, deadline):
    search.ask(lambda: [addresses], make_key(), deadline)


def receive(addresses, deadline):
    curve_exchange.receive([addresses], os.urandom(32), zmq.curve_keypair(), 1, deadline)


def use(addresses, deadline):
    with StoreClient(make_key(), *addresses, timeout=0.1) as client:
        while deadline - 0:
            with contextlib.suppress(StoreTimeout):
                client.find("a")


@pytest.mark.parametrize("look", [ask, receive, use])
def test_false_rank_0_cannot_fill_memory_of_a_rank(look):
    """It declares a megabyte before it has shown any key, so the connection is closed."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        looking = threading.Thread(target=look, args=(listener.getsockname(), Until(done)))
        looking.start()
        try:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(ConnectionError):
                # ZeroMQ itself closes the connection after 30 s.
                sock.settimeout(20)
                sock.sendall(GREETING + LARGE)
                while sock.recv(1000):
                    pass
        finally:
            done.set()
            looking.join()


HANDOVER = """
import os, resource, sys
from horovod.common.key_exchange import curve_exchange, key_server
from horovod.common.store import StoreServer
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
key, public = b"k" * 32, bytes.fromhex(sys.stdin.readline())
server = StoreServer(key)
listeners = key_server.listen(["127.0.0.1"], [0])
port = listeners[0].getsockname()[1]
exchange = curve_exchange.CurveKeyServer(listeners, lambda rank: public, key, server.address[1])
print(server.address[1], port, exchange.public.hex(), flush=True)
while sys.stdin.readline():  # a line: can this process still open files?
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    print(len(opened), flush=True)
    for fd in opened:
        os.close(fd)
"""


@pytest.mark.heavy
def test_strangers_cannot_take_all_descriptors_of_rank_0():
    """They connect to the ports of the store and of the key server, which are in one process."""
    pair = zmq.curve_keypair()
    with subprocess.Popen([sys.executable, "-c", HANDOVER], stdin=-1, stdout=-1, text=True) as process:

        def ask(line=""):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return process.stdout.readline().split()

        def sequentially(count):
            for number in range(count):
                yield number
                if number % 8 == 7:
                    time.sleep(0.02)  # gives rank 0 time to check
                assert ask() == ["8"]

        try:
            store, port, public = ask(zmq.utils.z85.decode(pair[0]).hex())
            with (
                strangers(("127.0.0.1", int(store)), sequentially(210)),
                strangers(("127.0.0.1", int(port)), sequentially(90)),
            ):
                assert descriptors(process) < 256
                addresses, deadline = [("127.0.0.1", int(port))], time.monotonic() + SECONDS
                # Once strangers have been dropped.
                found = curve_exchange.receive(addresses, bytes.fromhex(public), pair, 1, deadline)
                assert found == ("127.0.0.1", int(store), b"k" * 32)
        finally:
            process.kill()
