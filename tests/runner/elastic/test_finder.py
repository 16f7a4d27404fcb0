"""Repeated discovery of hosts."""

import select
import time

import pytest

from horovod.runner.base.arguments import HOROVOD_RUN
from horovod.runner.elastic.finder import EVERY, Finder, Found, NotFound
from tests.runner.launching import executable


def wait(finder, seconds=120.0):
    """Wait for news; fail the test if there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (told := finder.look(time.monotonic())) is not None:
            return told
        poll = select.poll()
        for fd, event in finder.events().items():
            poll.register(fd, event)
        at = finder.next_time()
        poll.poll(max(0.0, (at or deadline) - time.monotonic()) * 1000 + 1)
    raise AssertionError("nothing new")


def test_a_script_is_run_again_and_again_and_only_changes_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr("horovod.runner.elastic.finder.EVERY", 0.02)
    answer, script = tmp_path / "answer", tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/sh\necho >> {tmp_path}/runs; cat {answer}\n")
    script.chmod(0o755)

    def print_now(text):
        new = tmp_path / "new"
        new.write_text(text)
        new.rename(answer)

    def runs():
        return len((tmp_path / "runs").read_text())

    print_now("a:1\nb\n")
    finder = Finder(str(script), 3, {})
    assert wait(finder) == Found({"a": 1, "b": 3})
    before = runs()
    deadline = time.monotonic() + 120
    while runs() <= before + 2:
        assert time.monotonic() < deadline
        with pytest.raises(AssertionError):
            wait(finder, 0.5)
    print_now("nonsense here\n")
    told = wait(finder)
    assert isinstance(told, NotFound)
    assert not told.first
    assert "got 'nonsense here'" in told.why
    with pytest.raises(AssertionError):
        wait(finder, 0.2)
    script.rename(tmp_path / "gone")  # reported, too, although a run is failing already
    assert "which does not exist here" in wait(finder).why
    (tmp_path / "gone").rename(script)
    print_now("b:1\n")
    assert wait(finder) == Found({"b": 1})
    finder.close()
    finder.close()
    assert finder.look(time.monotonic()) is None
    assert finder.events() == {}


def test_the_first_answer_counts_for_more(tmp_path):
    script = executable(tmp_path / "hosts.sh", "#!/bin/sh\nexit 3\n")
    finder = Finder(str(script), None, {})
    told = wait(finder)
    assert isinstance(told, NotFound)
    assert told.first
    assert finder.next_time() <= time.monotonic() + EVERY
    with pytest.raises(ValueError, match=r"^host_discovery_script must be .*, which does not exist here"):
        Finder(str(tmp_path / "none.sh"), None, {}, names=HOROVOD_RUN)


def test_sentences_of_every_run_are_in_the_words_of_the_caller(tmp_path, monkeypatch):
    monkeypatch.setattr("horovod.runner.elastic.finder.EVERY", 0.02)
    script = executable(tmp_path / "hosts.sh", "#!/bin/sh\necho a\n")
    finder = Finder(str(script), None, {}, names=HOROVOD_RUN)
    assert "print 'a:N', or give slots" in wait(finder).why
    script.unlink()
    assert wait(finder).why.startswith(f"host_discovery_script must be an executable file, got {str(script)!r}, which")
    finder.close()


def test_the_same_hosts_always():
    finder = Finder(None, None, {"a": 1})
    assert finder.next_time() == 0.0
    assert finder.look(5.0) == Found({"a": 1})
    assert finder.look(6.0) is None
    assert finder.next_time() is None
