"""Detection of hosts that are this machine, without waiting for name resolution."""

import os
import select
import threading
import time

from horovod.runner.remote.routes import Locality


def test_results_arrive_as_soon_as_they_are_known(monkeypatch):
    slow = threading.Event()
    requests = []
    monkeypatch.setattr(
        "horovod.runner.remote.routes.hosts.is_local", lambda name: name == "here" or (name == "slow" and slow.wait(60))
    )
    monkeypatch.setattr("horovod.runner.remote.routes.ssh.ask_rules", requests.extend)
    before = len(os.listdir("/proc/self/fd"))
    locality = Locality(asks_ssh=True)
    assert locality.replies() == {}
    for name in ("here", "there", "slow"):
        locality.ask(name)
    found, deadline = {}, time.monotonic() + 30
    while len(found) < 2:
        assert time.monotonic() < deadline
        assert select.select([locality.fd], [], [], 30)[0]
        found.update(locality.replies())
    assert found == {"here": True, "there": False}
    assert requests == ["there"]
    locality.close()
    locality.close()
    slow.set()  # a late answer has no effect
    for thread in threading.enumerate():
        if thread.name == "horovod-locality":
            thread.join(30)
    assert len(os.listdir("/proc/self/fd")) == before
