"""A mailbox that any thread may fill and one thread reads."""

import os
import threading
import time

from horovod.runner.external_workers.mailbox import Mailbox


def test_items_are_taken_in_order():
    box = Mailbox()
    for number in range(3):
        box.put(number)
    assert box.take(None) == ([0, 1, 2], set())


def test_take_waits_for_another_thread_and_not_longer():
    box = Mailbox()
    threading.Timer(0.1, box.put, ["late"]).start()
    start = time.monotonic()
    assert box.take(start + 60)[0] == ["late"]
    assert time.monotonic() - start < 30


def test_take_returns_other_readable_descriptors():
    box = Mailbox()
    one, other = os.eventfd(1), os.eventfd(0)
    try:
        assert box.take(None, (one, other)) == ([], {one})
    finally:
        os.close(one)
        os.close(other)
