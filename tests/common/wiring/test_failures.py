"""How ranks that form a job hear of one another's failures, and that asking for them delays nothing."""

import contextlib
import socket
import threading
import time

import pytest

from horovod.common.network.listeners import Listeners
from horovod.common.store import StoreServer
from horovod.common.store.client import StoreClient
from horovod.common.wiring.failures import Failures, KnownFailureError
from horovod.common.wiring.link_errors import LinkError
from horovod.common.wiring.mesh import MeshBuilder
from horovod.common.wiring.peers import make_plan
from tests.common.threads import run_ranks
from tests.common.wiring.meshes import KEY, LOOPBACK, close_all, make_peers

HOSTS = ["host0", "host1"]
SOON = 20.0  # s; less than the 30 s for which a call to the store may wait


@contextlib.contextmanager
def late(port):
    """(port, event): connections to that port reach `port` of this host only once the event is set."""
    let_through, done = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)

        def copy(source, sink):
            source.settimeout(0.1)
            with contextlib.suppress(OSError):
                while not done.is_set():
                    with contextlib.suppress(TimeoutError):
                        data = source.recv(1 << 16) if let_through.wait(0.1) else b"-"
                        if not data:
                            break
                        if let_through.is_set() and data != b"-":
                            sink.sendall(data)
            for sock in (source, sink):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

        threads = []

        def serve():
            with contextlib.ExitStack() as held:
                while not done.is_set():
                    with contextlib.suppress(TimeoutError):
                        near = held.enter_context(listener.accept()[0])
                        far = held.enter_context(socket.create_connection(("127.0.0.1", port)))
                        for way in ((near, far), (far, near)):
                            threads.append(threading.Thread(target=copy, args=way))
                            threads[-1].start()
                for thread in threads:
                    thread.join(30)

        server = threading.Thread(target=serve)
        server.start()
        try:
            yield listener.getsockname()[1], let_through
        finally:
            done.set()
            server.join(30)


def check_until(failures, end):
    while time.monotonic() < end:
        failures.check()
        time.sleep(0.05)


def test_a_store_that_answers_late_delays_no_handshake():
    """Rank 0 has asked the store already when rank 1 comes, to which it has promised an answer in 5 s. What the store
    says later is still heard."""
    listeners = [Listeners(LOOPBACK, 64) for _ in HOSTS]
    peers = make_peers(HOSTS, listeners)
    with contextlib.ExitStack() as held:
        server = held.enter_context(StoreServer(KEY))
        port, let_through = held.enter_context(late(server.address[1]))
        stores = [held.enter_context(StoreClient(KEY, "127.0.0.1", port)) for _ in HOSTS]
        failures = [Failures(store, 7, rank, [0, 1], HOSTS[rank]) for rank, store in enumerate(stores)]

        def run(rank):
            time.sleep(rank)
            mesh = MeshBuilder(make_plan(rank, peers), peers, KEY, 7, listeners[rank])
            return mesh.run(60.0, failures[rank].check)

        begin = time.monotonic()
        results = run_ranks(2, run)
        seconds = time.monotonic() - begin
        for each in listeners:
            each.close()
        assert all(isinstance(links, dict) for links in results), results
        close_all(results)
        assert seconds < SOON
        let_through.set()
        with StoreClient(KEY, *server.address) as other:
            told = Failures(other, 7, 1, [0, 1], HOSTS[1]).tell(OSError(24, "Too many open files"))
        with pytest.raises(LinkError, match=r"rank 1 \(host host1, pid \d+\) could not join: Too many open files"):
            check_until(failures[0], begin + 60)
        assert failures[0].tell(OSError(5, "later")) == told


def test_what_one_says_at_the_end_all_know():
    with (
        StoreServer(KEY) as server,
        StoreClient(KEY, *server.address) as one,
        StoreClient(KEY, *server.address) as other,
    ):
        mine, theirs = (Failures(store, 7, rank, [3, 5], "h") for rank, store in enumerate((one, other)))
        thread = threading.Thread(target=theirs.await_others, args=("rank 5 could not join: why",))
        thread.start()
        with pytest.raises(KnownFailureError, match="rank 5 could not join: why"):
            mine.confirm(30.0)
        thread.join(30)
        with pytest.raises(LinkError, match=r"waited 0\.2 s for rank 5 to connect to its peers"):
            mine.confirm(0.2)
