"""The threads that query the API, with scripted answers."""

import queue

import pytest

from horovod.runner.kubernetes import follow
from horovod.runner.kubernetes.api import Api, ApiError, Unreachable
from horovod.runner.kubernetes.follow import LogReader, Watcher


class Answers:
    """`list` and `log` return the given results or raise the given errors; the last one repeats."""

    def __init__(self, *given):
        self.given = list(given)
        self.since = []

    def next(self):
        found = self.given.pop(0) if len(self.given) > 1 else self.given[0]
        if isinstance(found, Exception):
            raise found
        return found

    def list(self, kind, **query):
        return self.next()

    def log(self, pod, container, since=""):
        self.since.append(since)
        return iter(self.next())


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(follow, "AGAIN", 0.02)
    monkeypatch.setattr(follow, "AWAY_SECONDS", 0.2)


def heard(*given):
    inbox = queue.Queue()
    Watcher(Answers(*given), "Pod", "train", inbox).start()
    return inbox.get(timeout=60)


@pytest.mark.parametrize("error", [ApiError("busy", 503), ApiError("slowly", 429), Unreachable("nobody")])
def test_an_api_that_stays_away_is_lost(error):
    kind, found = heard(error)
    assert kind == "Pod"
    assert isinstance(found, Unreachable)  # the job continues after it
    assert str(found) == str(error)


def test_an_api_that_comes_back():
    listed = {"items": [], "metadata": {"resourceVersion": ""}}
    assert heard(ApiError("busy", 503), Unreachable("nobody"), listed) == ("Pod", {})


def test_watches_that_end_at_once_do_not_keep_a_processor_busy(monkeypatch):
    paused = []

    class Ending(Answers):
        def watch(self, kind, version, **query):
            return self.next()

    listed = {"items": [], "metadata": {"resourceVersion": "1"}}
    monkeypatch.setattr(follow, "AGAIN", 60.0)
    monkeypatch.setattr(follow.time, "sleep", paused.append)
    watcher = Watcher(Ending(listed, iter(()), ApiError("enough", 403)), "Pod", "train", queue.Queue())
    watcher.start()
    watcher.join(60)
    assert paused == [60.0]


def test_what_nobody_has_thought_of_is_told():
    kind, found = heard({"items": [{}]})
    assert (kind, type(found)) == ("Pod", ApiError)
    assert str(found) == "cannot follow what the API says of Pods: KeyError: 'metadata'"
    assert heard(ApiError("no", 403))[1].status == 403


def read(*given):
    """Return the output, messages and API requests of a LogReader for a pod that has ended."""
    answers, inbox, written, said = Answers(*given), queue.Queue(), [], []
    reader = LogReader(answers, "l", inbox, written.append, said.append)
    reader.start()
    while len(answers.given) > 1:
        reader.join(0.01)
    reader.ended.set()
    reader.join(5)
    assert inbox.get(timeout=5) == ("log", None)
    return written, said, answers.since


@pytest.mark.parametrize("offset", ["Z", "+05:30", "-03:00"])
def test_logs_are_read_on_by_the_clock_of_their_node(offset):
    lines = [f"2026-01-01T00:00:07.{tenth}00000000{offset} line {tenth}".encode() for tenth in range(4)]
    written, said, since = read(lines[:2], lines)
    assert written == [b"line 0", b"line 1", b"line 2", b"line 3"]
    assert said == []
    assert since[0] == ""
    assert set(since[1:]) == {f"2026-01-01T00:00:07{offset}"}


def test_logs_that_one_may_not_read():
    assert read(ApiError("not allowed to get pods/log", 403)) == (
        *([], ["the job's output cannot be shown: not allowed to get pods/log"]),
        [""],
    )


@pytest.mark.parametrize("error", [ApiError("dial tcp: lookup node-a: no such host", 500), Unreachable("nobody")])
def test_logs_of_a_node_that_cannot_be_asked(error):
    _, said, _ = read(error)
    assert said == [f"the job's output cannot be shown, or not yet: {error}"]


def test_a_node_that_can_be_asked_again():
    busy = ApiError("busy", 500)
    written, said, _ = read(busy, busy, [b"2026-01-01T00:00:07.0Z line"])
    assert (written, said) == ([b"line"], [])


def test_logs_that_are_not_there():
    written, said, since = read(ApiError("no such pod", 404))
    assert (written, said) == ([], [])
    assert len(since) >= follow.LAST_TRIES


def test_an_event_that_is_cut_short(monkeypatch):
    api = object.__new__(Api)
    monkeypatch.setattr(api, "_lines", lambda *_: iter([b'{"type": "ADDED", "object": {}}', b'{"type": "MOD']))
    events = api.watch("Pod", "1")
    assert next(events)["type"] == "ADDED"
    with pytest.raises(Unreachable, match="a watch has ended within an event"):
        next(events)
