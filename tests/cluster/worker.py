"""A minimal worker: python -m tests.cluster.worker [--fault NAME --rank N] [--steps N].

It joins the job without any framework, takes steps that need all ranks, prints "ready" (rank, host, pid) after some
and, if it is the chosen rank, then triggers the named fault.
"""

import argparse
import os
import signal
import socket
import sys
import time

READY = 3


def fault_exception() -> None:
    raise KeyError("no such layer")


def fault_chatter() -> None:
    for _ in range(10_000):
        print("on and on " * 10, flush=True)


def fault_early() -> None:
    sys.exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    own = int(os.environ["HOROVOD_RANK"]) == options.rank
    if options.fault == "stubborn":  # only SIGKILL ends it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if own and options.fault == "never":
        print("ready", options.rank, socket.gethostname(), os.getpid(), flush=True)
        time.sleep(3600)

    from horovod.common.basics import HorovodBasics
    from horovod.common.objects import allgather_object

    hvd = HorovodBasics("tests")
    hvd.init()
    for step in range(options.steps):
        ranks = allgather_object(hvd.rank(), name="ranks")
        assert ranks == list(range(hvd.size()))
        if step == READY:
            print("ready", hvd.rank(), socket.gethostname(), os.getpid(), flush=True)
        # No rank finishes the step after READY before all ranks have begun it and so printed that they are
        # ready.
        if own and step == READY + 1 and "fault_" + options.fault in globals():
            globals()["fault_" + options.fault]()
        time.sleep(0.01)
    hvd.shutdown()
    print(f"done after {options.steps} steps", flush=True)


if __name__ == "__main__":
    main()
