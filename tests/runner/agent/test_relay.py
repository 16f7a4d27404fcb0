"""Cost, for the agent and the launcher, of relaying connections of workers and strangers to the store."""

import socket

import pytest

from horovod.common.store.messages import MAX_REQUEST_BYTES
from horovod.runner.agent.messages import StreamData, StreamEnd, StreamOpen
from horovod.runner.agent.relay import Streams
from horovod.runner.job import store_relay
from horovod.runner.job.store_relay import StoreRelay
from horovod.runner.remote.connections import Agent


def test_endless_strangers_do_not_block_the_agent(monkeypatch):
    """The agent must still send its heartbeats."""
    streams = Streams(lambda report: None)
    streams.listen(1)

    class Endless:
        left = 5000

        def accept(self):
            self.left -= 1
            assert self.left, "it does nothing else any more"
            local, peer = socket.socketpair()
            peer.close()
            return local, None

        def close(self):
            pass

    streams._listener.close()
    monkeypatch.setattr(streams, "_listener", Endless())
    streams.serve(listening=True)
    streams.close()


@pytest.fixture
def mute_store():
    """Return a store that accepts and does not read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_the_launcher_buffers_little_for_fast_senders(mute_store, monkeypatch):
    sent = []
    agent = Agent("far", [], remote=True)
    monkeypatch.setattr(agent, "send", sent.append)
    relayed = StoreRelay(mute_store.getsockname()[:2], limit=2)
    relayed.take(agent, StreamOpen(1))
    relayed.take(agent, StreamOpen(3))
    relayed.take(agent, StreamData(3, bytes(MAX_REQUEST_BYTES)))  # as much as a member sends before it waits
    for _ in range(64):  # 64 MB
        relayed.take(agent, StreamData(1, bytes(1 << 20)))
        assert sum(writer.pending for _, _, writer in relayed._sockets.values()) <= 2 * store_relay.REQUEST_LIMIT
    assert sent == [StreamEnd(1)]
    assert list(relayed._sockets) == [(agent, 3)]
    relayed.close()
