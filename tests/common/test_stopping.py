"""A stop signal that reaches a process several times at once."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys
from horovod.common import stopping
stopping.SAME = float(sys.argv[1])
stopping.stopping.listen([signal.SIGUSR1])
for _ in range(3):
    signal.raise_signal(signal.SIGUSR1)
assert stopping.stopping.heard == signal.SIGUSR1
"""


@pytest.mark.parametrize(("same", "code"), [("60", 0), ("0", -signal.SIGUSR1)], ids=["at once", "later"])
def test_who_asks_twice_does_not_want_to_wait_but_one_warning_may_come_twice(same, code):
    assert subprocess.run([sys.executable, "-c", PROGRAM, same], timeout=60, check=False).returncode == code


ASKS = """
import os
from unittest import mock
from horovod.common import stopping
registered = []
os.register_at_fork = lambda **how: registered.append(how)
stopping.largest = lambda heard, name, face: heard
for _ in range(3):
    assert not stopping.should_stop(mock.Mock())
stopping.stopping._leave()
assert not stopping.should_stop(mock.Mock())
assert len(registered) == 1, registered
"""


@pytest.mark.parametrize("signals", ["SIGTERM,TERM", ","])
def test_a_process_prepares_for_forks_once_however_often_it_asks(signals):
    environ = {**os.environ, "HOROVOD_STOP_SIGNALS": signals}
    subprocess.run([sys.executable, "-c", ASKS], env=environ, timeout=60, check=True)
