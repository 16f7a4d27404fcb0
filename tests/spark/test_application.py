import threading
from types import SimpleNamespace

import pytest

from horovod.spark.application import Jobs


class Interrupted(threading.Thread):
    """A thread whose first join is interrupted."""

    def __init__(self, target):
        super().__init__(target=target, daemon=True)
        self._joined = False

    def join(self, timeout=None):
        if not self._joined:
            self._joined = True
            raise KeyboardInterrupt
        super().join(timeout)


def test_an_interrupt_in_the_farewell_cancels_all_the_same():
    over, cancelled = threading.Event(), []

    def cancel(group):
        cancelled.append(group)
        over.set()

    jobs = Jobs(SimpleNamespace(context=SimpleNamespace(cancelJobGroup=cancel)), "a job")
    thread = Interrupted(lambda: over.wait(20))
    thread.start()
    jobs._threads.append(thread)
    with pytest.raises(KeyboardInterrupt), jobs:
        pass
    assert cancelled == [jobs._group]
    assert not thread.is_alive()
