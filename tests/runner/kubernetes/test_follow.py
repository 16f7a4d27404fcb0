"""The threads that query the API, with scripted answers."""

import queue

import pytest

from horovod.runner.kubernetes import follow
from horovod.runner.kubernetes.api import ApiError, Unreachable
from horovod.runner.kubernetes.follow import LogReader, Watcher


class FakeApi:
    """`list` and `log` return the given results or raise the given errors; the last one repeats."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.since = []

    def next(self):
        found = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(found, Exception):
            raise found
        return found

    def list(self, kind, **query):
        return self.next()

    def log(self, pod, container, since=""):
        self.since.append(since)
        return iter(self.next())


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(follow, "AGAIN", 0.02)
    monkeypatch.setattr(follow, "RECONNECT_SECONDS", 0.2)


def followed(*replies):
    inbox = queue.Queue()
    Watcher(FakeApi(*replies), "Pod", "train", inbox).start()
    return inbox.get(timeout=60)


@pytest.mark.parametrize("error", [ApiError("busy", 503), ApiError("slowly", 429), Unreachable("nobody")])
def test_an_api_server_that_stays_away_is_lost(error):
    kind, found = followed(error)
    assert kind == "Pod"
    assert isinstance(found, Unreachable)  # the job continues after it
    assert str(found) == str(error)


def test_api_server_recovers():
    listed = {"items": [], "metadata": {"resourceVersion": ""}}
    assert followed(ApiError("busy", 503), Unreachable("nobody"), listed) == ("Pod", {})


def test_watches_that_end_at_once_do_not_busy_loop(monkeypatch):
    paused = []

    class EndingApi(FakeApi):
        def watch(self, kind, version, **query):
            return self.next()

    listed = {"items": [], "metadata": {"resourceVersion": "1"}}
    monkeypatch.setattr(follow, "AGAIN", 60.0)
    monkeypatch.setattr(follow.time, "sleep", paused.append)
    watcher = Watcher(EndingApi(listed, iter(()), ApiError("enough", 403)), "Pod", "train", queue.Queue())
    watcher.start()
    watcher.join(60)
    assert paused == [60.0]


def read(*replies):
    """Return the output, messages and API requests of a LogReader for a pod that has ended."""
    server, inbox, written, messages = FakeApi(*replies), queue.Queue(), [], []
    reader = LogReader(server, "l", inbox, written.append, messages.append)
    reader.start()
    while len(server.replies) > 1:
        reader.join(0.01)
    reader.ended.set()
    reader.join(60)
    assert inbox.get(timeout=60) == ("log", None)
    return written, messages, server.since


@pytest.mark.parametrize("offset", ["Z", "+05:30", "-03:00"])
def test_logs_resume_by_the_clock_of_their_node(offset):
    lines = [f"2026-01-01T00:00:07.{tenth}00000000{offset} line {tenth}".encode() for tenth in range(4)]
    written, messages, since = read(lines[:2], lines)
    assert written == [b"line 0", b"line 1", b"line 2", b"line 3"]
    assert messages == []
    assert since[0] == ""
    assert set(since[1:]) == {f"2026-01-01T00:00:07{offset}"}


@pytest.mark.parametrize("error", [ApiError("dial tcp: lookup node-a: no such host", 500), Unreachable("nobody")])
def test_logs_of_an_unreachable_node(error):
    _, messages, _ = read(error)
    assert messages == [f"the job's output cannot be shown, or not yet: {error}"]
