"""Simulated messages from a job to the launcher, and programs of real jobs."""

from horovod.common.contract import live
from horovod.runner.plan.hosts import Host, assign

HEAD = """
import sys, time
import numpy as np
from horovod import _core
from horovod.common.basics import HorovodBasics
from horovod.common.frontends import named

hvd = HorovodBasics("benchmark")
frontend = named("benchmark")

def allreduce(name, value=0.0):
    x = np.full(4, value, np.float32)
    at = x.ctypes.data
    frontend.run(_core.KIND_ALLREDUCE, name, at, at, x.shape, 7, 1, 0, 1.0, 1.0, 0, None, "", 0).wait()
    return x[0]

hvd.init()
rank = hvd.rank()
"""
"""Beginning of programs of real jobs that need no framework."""


def slots(size, each=8):
    return assign([Host(f"host{i}", each) for i in range((size + each - 1) // each)], size)


def parts(step=0.05, data=0.005, compute=0.03, exposed=0.015, hidden=0.01):
    return live.Parts(step, data, compute, exposed, hidden)


def second(size, at, count, loss=0.5, late=1):
    """Return the messages of one second, as lines."""
    last = live.Last(late, 0.71, 0.008)
    overall = live.Overall(float(at), count, count, parts(), parts(), 1e9, 2e9, last, last, "a sentence")
    rows = [
        live.Row(r, count, parts(data=0.001 * (1 + (r + at) % 7)), 0.7 if r == late else 0.0, 0.008)
        for r in range(size)
    ]
    waits = live.of_waits([], "")
    return [live.encode(waits), live.encode(overall), *live.packed(rows, [live.Value("loss", loss, loss, loss, size)])]
