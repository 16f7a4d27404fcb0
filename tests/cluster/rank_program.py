"""One rank of `ranks.py`: joins the job, reports its connections, works or idles, and reports how it ended.

Argument: what it does once in the job. Writes one JSON object a line.
"""

import contextlib
import ctypes
import json
import os
import socket
import sys
import time

from horovod import _core
from horovod.common import dtypes, ops
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import state
from horovod.common.objects import allgather_object


def connections() -> list[tuple[str, str]]:
    """Return (own address, peer's address) of this process's TCP connections."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                found.append((sock.getsockname()[0], sock.getpeername()[0]))
    return sorted(found)


def listening() -> int:
    """Return the number of this process's listening TCP sockets."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                count += sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return count


def send(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def work(what: str) -> None:
    if what == "gather":
        send(gathered=allgather_object(state.job.rank if state.job else -1))
    elif what == "idle":
        while state.engine is not None and state.engine.ended() is None:
            time.sleep(0.05)
        send(noticed=True)
        allgather_object(0)
    elif what == "sums":
        memory = (ctypes.c_float * 4)()
        base = ctypes.addressof(memory)
        while True:
            state.run(
                _core.KIND_ALLREDUCE, "sum", base, base, (4,), dtypes.FLOAT32, ops.Sum, 0, 1.0, 1.0, 0, None, "", 0
            ).wait()
    elif what == "busy":
        while True:
            allgather_object(0)


def main() -> None:
    basics = HorovodBasics("tests")
    begin = time.monotonic()
    try:
        basics.init()
    except ValueError as error:
        send(error=str(error), seconds=time.monotonic() - begin, listening=listening())
        return
    send(connections=connections(), listening=listening(), seconds=time.monotonic() - begin)
    try:
        work(sys.argv[1])
    except HorovodInternalError as error:
        send(lost=str(error))
    basics.shutdown()


if __name__ == "__main__":
    main()
