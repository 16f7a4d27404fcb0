"""Measure a job's time to start, do one allreduce and stop, and its messages to the store, without a framework.

    python benchmarks/start.py [--workers 2,16,64] [--hosts 1,4] [--repeats 3] [--json FILE]

Each row is a run of `horovodrun` with a number of workers and of "hosts". Hosts are addresses of this machine
(127.0.0.x), which the engine treats as different hosts, so all their ranks are connected by TCP. For comparison, the
same number of Python interpreters is started at once without work. Times are medians of the repeats. They depend on
other load of the machine, so the table also has the CPU time of the whole job.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Maximum seconds for one job.
LIMIT = 600
# Number of elements in the allreduce.
COUNT = 1024


@dataclass
class Row:
    """Results of a job.

    The job's phases are `launch`, `imports`, `init`, `allreduce` and `stop`. A phase ends when the slowest worker has
    finished it, and the phases sum up to `total`.

    Attributes:
        interpreters: Seconds in which the same number of interpreters start and stop without work.
        launch: Seconds until the last worker runs its first line of Python.
        imports: Seconds to import horovod.common.
        cpu: CPU seconds of launcher, agents and workers together.
        messages: Number of messages between a worker and the store.
        sent: Bytes that a worker sends to the store.
    """

    workers: int
    hosts: int
    interpreters: float
    total: float
    launch: float
    imports: float
    init: float
    allreduce: float
    stop: float
    cpu: float
    messages: float
    sent: float
    received: float

    @property
    def beyond(self) -> float:
        return self.total - self.interpreters


# -- a worker --------------------------------------------------------------------------------------------------------


class Traffic:
    """Counter of this process's messages to the store, with their sizes before encryption."""

    def __init__(self) -> None:
        import zmq

        self.messages = self.sent = self.received = 0
        send, receive = zmq.Socket.send, zmq.Socket.recv

        def counted_send(socket: Any, data: Any, *args: Any, **options: Any) -> Any:
            self.messages += 1
            self.sent += len(data)
            return send(socket, data, *args, **options)

        def counted_receive(socket: Any, *args: Any, **options: Any) -> Any:
            data = receive(socket, *args, **options)
            self.messages += 1
            self.received += len(data)
            return data

        zmq.Socket.send, zmq.Socket.recv = counted_send, counted_receive


def worker(traffic_too: bool) -> None:
    times = [time.monotonic()]
    from horovod import _core
    from horovod.common import dtypes, ops
    from horovod.common.basics import HorovodBasics
    from horovod.common.bootstrap import start  # noqa: F401
    from horovod.common.frontends import state

    times.append(time.monotonic())
    traffic = Traffic() if traffic_too else None
    basics = HorovodBasics("benchmark")
    basics.init()
    times.append(time.monotonic())
    numbers = (ctypes.c_float * COUNT)(*[1.0] * COUNT)
    address = ctypes.addressof(numbers)
    assert state.engine is not None
    work = state.engine.run(
        _core.KIND_ALLREDUCE, "start", address, address, (COUNT,), dtypes.FLOAT32, ops.Sum, 0, 1.0, 1.0, 0, None, "", 0
    )
    work.wait()
    times.append(time.monotonic())
    if set(numbers) != {float(basics.size())}:
        raise SystemExit(f"rank {basics.rank()}: the allreduce of ones gave {sorted(set(numbers))}")
    basics.shutdown()
    record: dict[str, Any] = {"times": times}
    if traffic is not None:
        record.update(messages=traffic.messages, sent=traffic.sent, received=traffic.received)
    print(json.dumps(record))


# -- measuring ---------------------------------------------------------------------------------------------------------


def environment(bytecode: str) -> dict[str, str]:
    """Return an environment in which Python compiles modules once, into the folder `bytecode`."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    made = {**os.environ, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": bytecode, "OMP_NUM_THREADS": "1"}
    made.pop("PYTHONDONTWRITEBYTECODE", None)
    return made


def interpreters(count: int) -> float:
    """Return the seconds in which `count` interpreters start together and stop."""
    begin = time.monotonic()
    processes = [subprocess.Popen([sys.executable, "-c", "pass"]) for _ in range(count)]
    for process in processes:
        process.wait()
    return time.monotonic() - begin


def host_list(workers: int, hosts: int) -> str:
    """Return a host list that distributes the workers evenly; the first hosts get the remainder."""
    if hosts == 1:
        return f"localhost:{workers}"
    counts = [workers // hosts + (index < workers % hosts) for index in range(hosts)]
    return ",".join(f"127.0.0.{index + 1}:{count}" for index, count in enumerate(counts) if count)


def run_job(
    workers: int, hosts: int, traffic: bool, variables: dict[str, str]
) -> tuple[float, float, float, list[dict[str, Any]]]:
    """Run a job and return its start time, end time, CPU seconds, and the workers' records."""
    command = [sys.executable, "-m", "horovod.runner", "-np", str(workers), "-H", host_list(workers, hosts)]
    command += ["--start-timeout", str(LIMIT), sys.executable, str(Path(__file__).resolve())]
    command += ["--worker-with-traffic" if traffic else "--worker"]
    begin = time.monotonic()
    before = os.times()
    done = subprocess.run(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=LIMIT,
        text=True,
        check=False,
    )
    end = time.monotonic()
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    if done.returncode != 0:
        raise SystemExit(f"the job with {workers} workers on {hosts} hosts ended with exit code {done.returncode}")
    records = [json.loads(line.partition(">:")[2]) for line in done.stdout.splitlines()]
    if len(records) != workers:
        raise SystemExit(f"{len(records)} of {workers} workers wrote their line")
    return begin, end, cpu, records


def measure(workers: int, hosts: int, repeats: int, variables: dict[str, str]) -> Row:
    samples = []
    for _ in range(repeats):
        idle = interpreters(workers)
        begin, end, cpu, records = run_job(workers, hosts, traffic=False, variables=variables)
        # A phase ends when the last worker has finished it.
        ends = [max(record["times"][phase] for record in records) for phase in range(4)]
        samples.append(
            (
                idle,
                end - begin,
                ends[0] - begin,
                ends[1] - ends[0],
                ends[2] - ends[1],
                ends[3] - ends[2],
                end - ends[3],
                cpu,
            )
        )
    records = run_job(workers, hosts, traffic=True, variables=variables)[3]
    said = [statistics.mean(record[name] for record in records) for name in ("messages", "sent", "received")]
    return Row(workers, hosts, *(statistics.median(column) for column in zip(*samples, strict=True)), *said)


def table(rows: list[Row]) -> str:
    phases = ("launch", "imports", "init", "allreduce", "stop")
    names = ("workers", "hosts", "interpreters", "whole job", "beyond", *phases, "CPU", "messages", "sent", "received")
    lines = [f"| {' | '.join(names)} |", "|--:" * len(names) + "|"]
    for row in rows:
        seconds = (row.interpreters, row.total, row.beyond, row.launch, row.imports, row.init, row.allreduce, row.stop)
        cells = [str(row.workers), str(row.hosts), *(f"{value:.2f} s" for value in (*seconds, row.cpu))]
        cells += [f"{row.messages:.1f}", *(f"{value / 1024:.1f} KiB" for value in (row.sent, row.received))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=numbers, default=[2, 16, 64], help="how many (default: 2,16,64)")
    parser.add_argument("--hosts", type=numbers, default=[1, 4], help="on how many hosts (default: 1,4)")
    parser.add_argument("--repeats", type=int, default=3, help="of each; the median counts (default: 3)")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--worker-with-traffic", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker or options.worker_with_traffic:
        worker(options.worker_with_traffic)
        return
    rows = []
    with tempfile.TemporaryDirectory() as bytecode:
        variables = environment(bytecode)
        run_job(2, 1, traffic=True, variables=variables)
        for workers, hosts in itertools.product(options.workers, options.hosts):
            if hosts <= workers:
                rows.append(measure(workers, hosts, options.repeats, variables))
                print(table(rows[-1:]), flush=True)
    load = os.getloadavg()[0]
    print(f"\n{table(rows)}\n\n{len(os.sched_getaffinity(0))} cores, load average {load:.1f} at the end")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
