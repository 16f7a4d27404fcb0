"""How ranks learn of one another's failures during bootstrap, without delaying it."""

import contextlib
import threading

import pytest

from horovod.common.bootstrap.errors import Failures, KnownFailureError, LinkError
from horovod.common.store import StoreServer
from horovod.common.store.client import StoreClient
from tests.common.bootstrap.meshes import KEY
from tests.runner.launching import eventually

HOSTS = ["host0", "host1"]


def test_the_first_failure_is_reported_to_all():
    with StoreServer(KEY) as server, contextlib.ExitStack() as held:
        stores = [held.enter_context(StoreClient(KEY, *server.address)) for _ in HOSTS]
        local, remote = (Failures(store, 7, rank, [0, 1], HOSTS[rank]) for rank, store in enumerate(stores))
        reported = remote.report(OSError(24, "Too many open files"))
        with pytest.raises(LinkError, match=r"rank 1 \(host host1, pid \d+\) could not join: Too many open files"):
            eventually(local.check, 60, "the failure is heard")  # check returns None until then
        assert local.report(OSError(5, "later")) == reported


def test_failures_at_the_end_reach_all_ranks():
    with (
        StoreServer(KEY) as server,
        StoreClient(KEY, *server.address) as one,
        StoreClient(KEY, *server.address) as other,
    ):
        local, remote = (Failures(store, 7, rank, [3, 5], "h") for rank, store in enumerate((one, other)))
        thread = threading.Thread(target=remote.await_peers, args=("rank 5 could not join: why",))
        thread.start()
        with pytest.raises(KnownFailureError, match="rank 5 could not join: why"):
            local.confirm(30.0)
        thread.join(30)
        with pytest.raises(LinkError, match=r"waited 0\.2 s for rank 5 to connect to its peers"):
            local.confirm(0.2)
