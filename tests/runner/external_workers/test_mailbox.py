"""A mailbox that any thread may fill and one thread reads."""

import os
import subprocess
import sys
import threading
import time

from horovod.runner.external_workers.mailbox import Mailbox


def test_a_thread_may_speak_when_python_ends():
    """Ray has threads of its own, which report calls that end with the actors."""
    code = (
        "import atexit\nboxes = []\natexit.register(lambda: boxes[0].put('late'))\n"  # called last
        "from horovod.runner.external_workers.mailbox import Mailbox\nboxes.append(Mailbox())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_items_come_in_order():
    box = Mailbox()
    for number in range(3):
        box.put(number)
    assert box.take(None) == ([0, 1, 2], set())


def test_take_waits_for_another_thread_and_not_longer():
    box = Mailbox()
    threading.Timer(0.1, box.put, ["late"]).start()
    begun = time.monotonic()
    assert box.take(begun + 10)[0] == ["late"]
    assert time.monotonic() - begun < 5


def test_take_ends_at_its_time_with_nothing():
    begun = time.monotonic()
    assert Mailbox().take(begun + 0.05) == ([], set())
    assert 0.04 < time.monotonic() - begun < 5


def test_take_knows_times_that_are_far_away():
    box = Mailbox()
    box.put("now")
    assert box.take(time.monotonic() + 1e9)[0] == ["now"]


def test_take_tells_which_other_descriptor_can_be_read():
    box = Mailbox()
    one, other = os.eventfd(1), os.eventfd(0)
    try:
        assert box.take(None, (one, other)) == ([], {one})
    finally:
        os.close(one)
        os.close(other)


def test_its_descriptor_ends_with_it():
    box = Mailbox()
    fd = box._fd
    del box
    try:
        os.fstat(fd)
    except OSError:
        return
    raise AssertionError("it is still open")
