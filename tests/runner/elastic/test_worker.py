"""Names that programs import."""

import contextlib
import socket

import pytest

from horovod.common.elastic import HostUpdateResult as SameResult
from horovod.common.elastic import notification_manager
from horovod.runner.elastic import worker


def test_names_and_values():
    assert worker.HostUpdateResult is SameResult
    assert [int(one) for one in worker.HostUpdateResult.__members__.values()] == [0, 1, 2, 3]
    assert worker.HostUpdateResult.removed | worker.HostUpdateResult.added == worker.HostUpdateResult.mixed
    request = worker.HostsUpdatedRequest(3.5)
    assert (request.timestamp, request.res) == (3.5, worker.HostUpdateResult.no_update)
    assert isinstance(notification_manager, worker.WorkerNotificationManager)
    assert worker.HOROVOD_LOCAL_RANK == "HOROVOD_LOCAL_RANK"


def test_notifications_over_a_connection():
    manager = worker.WorkerNotificationManager()
    received = []
    listener = type("Listener", (), {"on_hosts_updated": lambda self, *news: received.append(news)})()
    manager.register_listener(listener)
    service = worker.WorkerNotificationService(b"k" * 32, None, manager)
    try:
        worker.WorkerNotificationClient(service.addresses(), b"k" * 32, 0).notify_hosts_updated(
            4.5, worker.HostUpdateResult.added
        )
        assert received == [(4.5, worker.HostUpdateResult.added)]
        stranger = worker.WorkerNotificationClient(service.addresses(), b"another key", 2, match_intf=True)
        with pytest.raises(ConnectionError, match=r"at 127.0.0.1:\d+: "):
            stranger.notify_hosts_updated(5.5, worker.HostUpdateResult.removed)
        assert len(received) == 1
        with contextlib.ExitStack() as idle:  # idle strangers, more than there are slots
            for _ in range(70):
                idle.enter_context(socket.create_connection(service.addresses()["lo"][0], timeout=20))
            client = worker.WorkerNotificationClient(service.addresses(), b"k" * 32, 0)
            client.notify_hosts_updated(6.5, worker.HostUpdateResult.removed)
        assert received[1:] == [(6.5, worker.HostUpdateResult.removed)]
    finally:
        service.shutdown()
        service.shutdown()
    with pytest.raises(ValueError, match=r"nic must be one of .*\blo\b.*, got 'wlan9'"):
        worker.WorkerNotificationService(b"k", "wlan9", manager)
    with pytest.raises(ValueError, match="at least one address"):
        worker.WorkerNotificationClient({}, b"k", 0)
