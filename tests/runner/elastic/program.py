"""A worker of an elastic job without a framework that reports its actions on stdout.

Arguments: a file that ends the job, and optionally a directory for checkpoints. Files beside the first one tell
workers which faults to trigger.
"""

import copy
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

from horovod.common import frontends
from horovod.common.basics import HorovodBasics, failures
from horovod.common.bootstrap import start
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.elastic.state_checkpoint import StateCheckpoint
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.objects import allgather_object, broadcast_object

hvd = HorovodBasics("tests")
FRONTEND = frontends.named("tests")
CHECKPOINT = (
    StateCheckpoint(sys.argv[2], rank=hvd.rank, size=hvd.size, copied=copy.deepcopy) if len(sys.argv) > 2 else None
)


def request(name: str) -> str:
    """Return the content of the file that requests an action of this worker, or nothing."""
    file = Path(f"{sys.argv[1]}.{name}{os.environ['HOROVOD_WORKER']}")
    return file.read_text() or "yes" if file.exists() else ""


def named_busy() -> list[str]:
    """Return the workers that compute for long, until the file that names them is removed.

    Rank 0's answer counts, so that all of them begin after the same step.
    """
    try:
        return Path(sys.argv[1] + ".busy").read_text().split()
    except FileNotFoundError:
        return []


def log(*fields: Any) -> None:
    print(time.monotonic(), *fields, flush=True)


def broadcast(obj: Any, root_rank: int = 0) -> Any:
    return broadcast_object(obj, root_rank, "broadcast", frontend=FRONTEND)


def train(state: ObjectState) -> None:
    log("begins", state.step, hvd.rank(), hvd.size(), os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"])
    over = False
    while not over:
        reports = allgather_object((state.step, os.path.exists(sys.argv[1]), named_busy()), "step", frontend=FRONTEND)
        assert {step for step, *_ in reports} == {state.step}, reports
        assert len(reports) == hvd.size()
        _, over, busy = reports[0]
        state.step += 1
        hvd.step()
        if CHECKPOINT is not None and state.step % 10 == 0:
            CHECKPOINT.save(state.step, state)
        state.commit()
        log("step", state.step)
        time.sleep(0.005)
        if os.path.exists(sys.argv[1] + f".fork{os.environ['HOROVOD_WORKER']}"):
            os.unlink(sys.argv[1] + f".fork{os.environ['HOROVOD_WORKER']}")
            log("forked", forked())
        if os.path.exists(sys.argv[1] + f".pace{hvd.size()}"):
            time.sleep(0.2)  # steps with so many ranks are slow, so that a test need not be fast
        if os.environ["HOROVOD_WORKER"] in busy:
            log("busy")
            while named_busy():
                time.sleep(0.05)  # simulates computation


def gather(obj: Any, name: str) -> list[Any]:
    return allgather_object(obj, name, frontend=FRONTEND)


def forked() -> int:
    """Return the exit status of a forked child that ends as Python ends, like a data loader's."""
    child = os.fork()
    if child == 0:
        gc.collect()
        sys.exit(7)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    return -1


def report(state: ObjectState) -> None:
    try:
        train(state)
    except HostsUpdatedInterrupt as interrupt:
        log("interrupted", "skips" if interrupt.skip_sync else "syncs")
        raise
    except HorovodInternalError as error:
        log("failed", str(error).replace(" ", "-"))
        raise


def reset() -> None:
    hvd.shutdown()
    hvd.init()


if os.path.exists(sys.argv[1] + f".old{os.environ['HOROVOD_WORKER']}"):
    start.__version__ = "0.0.1"
hvd.init()
more = {"other": 1} if os.path.exists(sys.argv[1] + f".other{os.environ['HOROVOD_WORKER']}") else {}
initial = ObjectState(broadcast, hvd.rank, gather, step=0, **more)
if CHECKPOINT is not None:
    initial.register_reset_callbacks([lambda: log("adapts", initial.step, hvd.size())])
    log("resumes", CHECKPOINT.resume(initial))
run_fn(report, reset, failures)(initial)
if CHECKPOINT is not None:
    CHECKPOINT.close()
log("ends")
