"""A job that cannot be observed continues, and a job whose observers fail still ends."""

import subprocess
import sys

import pytest

CANNOT_BEGIN = """
import numpy as np, horovod.numpy as hvd
from horovod.common.telemetry import stacks as witness

def refuse(name):
    raise OSError(24, "Too many open files")

witness._memory = refuse
hvd.init()
assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [1, 1]
for ask in (hvd.stats, hvd.dump, lambda: hvd.report(loss=1), lambda: hvd.start_timeline("x.json")):
    try:
        ask()
    except RuntimeError as error:
        assert "not observed" in str(error), error
    else:
        raise AssertionError(ask)
hvd.step()
hvd.stop_timeline()
hvd.shutdown()
hvd.init()
hvd.shutdown()
print("went on")
"""
CANNOT_END = """
import horovod.numpy as hvd
from horovod.common import observed
from horovod.common.frontends import state

hvd.init()

observed._telemetry._door.close = lambda: 1 / 0
hvd.shutdown()
assert state.engine is None
assert not hvd.is_initialized()
print("went on")
"""


@pytest.mark.parametrize(
    ("program", "said"), [(CANNOT_BEGIN, "OSError: [Errno 24] Too many open files"), (CANNOT_END, "ZeroDivisionError")]
)
def test_a_job_goes_on(program, said):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout == "went on\n", done.stderr
    assert said in done.stderr
