"""Repeated discovery of hosts."""

import select
import time

import pytest

from horovod.runner.elastic.finder import Discovered, DiscoveryFailed, Finder


def wait(finder, seconds=120.0):
    """Wait for news; fail the test if there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (update := finder.look(time.monotonic())) is not None:
            return update
        poll = select.poll()
        for fd, event in finder.events().items():
            poll.register(fd, event)
        at = finder.next_time()
        poll.poll(max(0.0, (at or deadline) - time.monotonic()) * 1000 + 1)
    raise AssertionError("nothing new")


def test_scripts_run_repeatedly_and_only_changes_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("horovod.runner.elastic.finder.EVERY", 0.02)
    output_file, script = tmp_path / "answer", tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/sh\necho >> {tmp_path}/runs; cat {output_file}\n")
    script.chmod(0o755)

    def print_now(text):
        new = tmp_path / "new"
        new.write_text(text)
        new.rename(output_file)

    def runs():
        return len((tmp_path / "runs").read_text())

    print_now("a:1\nb\n")
    finder = Finder(str(script), 3, {})
    assert wait(finder) == Discovered({"a": 1, "b": 3})
    before = runs()
    deadline = time.monotonic() + 120
    while runs() <= before + 2:
        assert time.monotonic() < deadline
        with pytest.raises(AssertionError):
            wait(finder, 0.5)
    print_now("nonsense here\n")
    update = wait(finder)
    assert isinstance(update, DiscoveryFailed)
    assert not update.first
    assert "got 'nonsense here'" in update.why
    with pytest.raises(AssertionError):
        wait(finder, 0.2)
    script.rename(tmp_path / "gone")  # reported, too, although a run is failing already
    assert "which does not exist here" in wait(finder).why
    (tmp_path / "gone").rename(script)
    print_now("b:1\n")
    assert wait(finder) == Discovered({"b": 1})
    finder.close()
    finder.close()
    assert finder.look(time.monotonic()) is None
    assert finder.events() == {}
