"""Worker program of these tests: joins the job without a framework, prints its ranks, and fails on request.

`python worker.py [WHAT]`, WHAT is one of

    (none)      init, a collective, shutdown, and all of it once more
    raise:R     rank R raises ValueError("no more data") while the others wait for it
    sleep:R     rank R sleeps while the others wait for it
    kill:R      rank R dies by SIGKILL
    absent:R    rank R never calls init
    child:R     rank R starts this program again; that process is no rank
    mpi4py      uses MPI through mpi4py before and after
"""

import json
import os
import signal
import subprocess
import sys
import time

from horovod.common.basics import HorovodBasics
from horovod.common.frontends import named
from horovod.common.launchers import find
from horovod.common.objects import allgather_object

hvd = HorovodBasics("benchmark")


def gather(value):
    return allgather_object(value, frontend=named("benchmark"))


def describe():
    return {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "local": [hvd.local_rank(), hvd.local_size()],
        "cross": [hvd.cross_rank(), hvd.cross_size()],
        "mpi": hvd.mpi_enabled(),
        "key in environment": "HOROVOD_JOB_KEY" in os.environ,
    }


def finish(fault):
    action, _, rank = fault.partition(":")
    if action == "child":
        if hvd.rank() == int(rank):
            start_a_child()
        return
    if hvd.rank() == int(rank):
        time.sleep(0.5)
        if action == "raise":
            raise ValueError("no more data")
        if action == "sleep":
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)
    gather(None)


def start_a_child():
    child = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60)
    assert child.returncode == 1, child
    assert f"was started by rank {hvd.rank()} (pid {os.getpid()}) and is no rank itself" in child.stderr, child.stderr


def main():
    fault = sys.argv[1] if len(sys.argv) > 1 else ""
    if fault.startswith("absent") and find(os.environ).rank == int(fault[7:]):
        time.sleep(600)
    if fault == "mpi4py":
        from mpi4py import MPI

        assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size
    hvd.init()
    facts = gather(describe())
    if hvd.rank() == 0:
        print("ALL_RANKS " + json.dumps(facts), flush=True)
    if fault == "mpi4py":
        assert MPI.COMM_WORLD.allreduce(hvd.rank()) == sum(range(hvd.size()))
    elif fault:
        finish(fault)
    hvd.shutdown()
    hvd.init()
    assert gather(hvd.rank()) == list(range(hvd.size()))
    hvd.shutdown()


main()
