"""Resources left by liveness connections that cannot start, or do not end."""

import time

import zmq

from horovod.common.contract.worker_env import make_key
from horovod.common.store.sockets import listen
from horovod.runner.external_workers import liveness


def test_heartbeats_stop_in_time(monkeypatch):
    monkeypatch.setattr(liveness, "_CLOSE", 0.5)
    with listen("127.0.0.1") as deaf:
        answering = liveness.HeartbeatClient("127.0.0.1", deaf.getsockname()[1], make_key(), 0)
        held = answering._context.socket(zmq.DEALER)  # the context does not end while it is open
        start = time.monotonic()
        answering.close()
        assert 0.4 < time.monotonic() - start < 20.0
        held.close(linger=0)
