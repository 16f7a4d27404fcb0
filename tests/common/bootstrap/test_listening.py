"""Messages that a worker of an elastic job receives and sends beside its program."""

import os
import select
import threading

from horovod.common.bootstrap import listening as module
from horovod.common.bootstrap.listening import Listening
from horovod.common.contract.membership import HostUpdateResult, Place, Updated, encode
from horovod.common.store.client import StoreError, StoreTimeout


class Launcher:
    """A store whose launcher is stopped for the first messages. ``told``: the messages received."""

    def __init__(self, deaf):
        self._deaf = deaf
        self.reported = []
        self.all_told = threading.Event()

    def news(self, worker, after, timeout, beside):
        select.select(beside, [], [], min(timeout, 0.5))
        return after, []

    def report_end(self, worker, epoch, lost=(), blame=""):
        if self._deaf:
            self._deaf -= 1
            raise StoreTimeout("no answer from the job's store", [])
        self.reported.append((worker, epoch, [*lost], blame))
        self.all_told.set()


class Engine:
    """An engine that ends when ``end`` is called, after losing rank 1."""

    def __init__(self):
        self._signal = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def end(self):
        os.eventfd_write(self._signal, 1)

    def ended(self):
        return "lost", 1

    def end_signal(self):
        return self

    def fileno(self):
        return self._signal

    def failures(self):
        return 0


class Broken:
    """A connection on which every receive fails."""

    def news(self, worker, after, timeout, beside):
        raise StoreError("the store is full")

    def close(self):
        pass


class Updating(Launcher):
    """A connection with news after the last known one, some of it malformed."""

    def news(self, worker, after, timeout, beside):
        if after >= 9:
            return super().news(worker, after, timeout, beside)
        return 9, [b"no news", encode(Updated(3, 5.0, int(HostUpdateResult.added)))]


def test_failed_connections_are_retried_and_reported_once(monkeypatch, capfd):
    monkeypatch.setattr(module, "PAUSE", 0.01)
    peer, engine, event = Updating(deaf=0), Engine(), threading.Event()
    started, tried = threading.Event(), []

    def connect():
        assert started.wait(60)
        tried.append(None)
        if len(tried) == 1:
            raise ValueError("the store's address cannot be used: too many open files")
        return peer if len(tried) == 5 else Broken()

    listening = Listening(7, connect, lambda at, what, epoch: event.set() if what is HostUpdateResult.added else None)
    listening.begin(Place(3, 0, 2, 0, 2, 0, 1, [7, 9]), engine)
    started.set()
    assert event.wait(60), "rank 0 would let no worker in"
    engine.end()
    assert peer.all_told.wait(60)
    output = capfd.readouterr().err
    assert output.count("on which the launcher's news come has failed, and is tried again: the store's address") == 1
    assert output.count("news of the launcher that cannot be read are passed over") == 1
