"""How ranks learn of one another's failures during bootstrap, without delaying it."""

import contextlib
import socket
import threading
import time

import pytest

from horovod.common.bootstrap.errors import Failures, KnownFailureError, LinkError
from horovod.common.bootstrap.mesh import MeshBuilder
from horovod.common.bootstrap.peers import make_plan
from horovod.common.network.connecting import Listeners
from horovod.common.store import StoreServer
from horovod.common.store.client import StoreClient
from tests.common.bootstrap.meshes import KEY, LOOPBACK, close_all, make_peers
from tests.common.threads import run_ranks
from tests.runner.launching import eventually

HOSTS = ["host0", "host1"]
SOON = 20.0  # seconds; less than the 30 s for which a call to the store may wait


def test_a_store_that_does_not_answer_delays_no_handshake():
    """Rank 0 has already queried the store when rank 1 connects, which must be answered within 5 s."""
    listeners = [Listeners(LOOPBACK, 64) for _ in HOSTS]
    peers = make_peers(HOSTS, listeners)
    with contextlib.ExitStack() as held:
        silent = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        stores = [held.enter_context(StoreClient(KEY, *silent.getsockname())) for _ in HOSTS]

        def run(rank):
            time.sleep(rank)
            mesh = MeshBuilder(make_plan(rank, peers), peers, KEY, 7, listeners[rank])
            return mesh.run(60.0, Failures(stores[rank], 7, rank, [0, 1], HOSTS[rank]).check)

        begin = time.monotonic()
        results = run_ranks(2, run)
        assert time.monotonic() - begin < SOON
        for each in listeners:
            each.close()
        assert all(isinstance(links, dict) for links in results), results
        close_all(results)


def test_the_first_failure_is_told_to_all():
    with StoreServer(KEY) as server, contextlib.ExitStack() as held:
        stores = [held.enter_context(StoreClient(KEY, *server.address)) for _ in HOSTS]
        mine, theirs = (Failures(store, 7, rank, [0, 1], HOSTS[rank]) for rank, store in enumerate(stores))
        told = theirs.tell(OSError(24, "Too many open files"))
        with pytest.raises(LinkError, match=r"rank 1 \(host host1, pid \d+\) could not join: Too many open files"):
            eventually(mine.check, 60, "the failure is heard")  # check returns None until then
        assert mine.tell(OSError(5, "later")) == told


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
