"""The loop that watches a job, without processes; and jobs rejected before they begin."""

import os
import threading
import time

from horovod.runner.job.policy import Policy
from horovod.runner.job.watch import Watch
from horovod.runner.output.display import Screen
from horovod.runner.output.output import OutputQueue
from horovod.runner.plan.hosts import Host, assign
from horovod.runner.plan.settings import LaunchSettings

SETTINGS = LaunchSettings(command=["true"], slots=assign([Host("localhost", 1)], 1))
LIMIT = 60.0  # seconds


class Ended:
    """An attempt without running processes; `stopped`: how often it was asked to stop."""

    ended = True
    stopped = 0

    def start(self):
        pass

    def events(self, listening):
        return {}

    def serve(self, ready, listening):
        pass

    def next_time(self):
        return None

    def tick(self, now, listening):
        pass

    def doubtful(self, now):
        return False

    def stop(self, grace, first=0):
        self.stopped += 1


def make_watch(output=None):
    return Watch(Screen(SETTINGS, output), Policy(time.monotonic(), None), None, 1)


def test_a_closed_reader_is_reported_once():
    """Also while the other stream still has a slow reader."""
    (closed, out), (near, err) = os.pipe(), os.pipe()
    os.close(closed)
    received = bytearray()

    def read():
        while data := os.read(near, 1 << 14):
            received.extend(data)
            time.sleep(0.002)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        watch, attempt = make_watch(OutputQueue(out, err)), Ended()
        watch.screen.queue.put(1, b"nobody reads this\n")
        watch.screen.queue.put(2, b"x" * 99 * 10000 + b"\n")
        watch.run(attempt)
    finally:
        os.close(out)
        os.close(err)
        reader.join(LIMIT)
        os.close(near)
    assert len(received) == 990001
    assert watch.troubles == ["the reader of the output has closed it (broken pipe)"]
    assert attempt.stopped == 1
