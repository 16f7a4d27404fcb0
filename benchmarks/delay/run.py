"""Measure a small blocking allreduce between hosts with a network delay between any two.

    python benchmarks/delay/run.py [--delay 200] [--hosts 2,4,8] [--sizes 4,4096] [--rounds 5] [--gloo] [--realtime]

The hosts are network namespaces, connected by a switch that delays every packet (hosts.py, switch.c), which are removed
at the end. Needs root. Reports medians over all operations of rank 0 with 10th and 90th percentiles, and the ratio to
the time of one message between two sockets, which is measured in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hosts import DelayedHosts, missing

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WARM = 30  # operations before the measured ones, until a schedule runs
COUNT = 60


class Job:
    """Job of `peer` with one process per host."""

    def __init__(
        self, hosts: DelayedHosts, peer: str, count: int, environ: list[dict[str, str]], first: list[str]
    ) -> None:
        self.name = f"{peer} on {count} hosts"
        self._processes: list[subprocess.Popen[str]] = []
        base = {key: value for key, value in os.environ.items() if not key.startswith("HOROVOD_")}
        base |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        for host, extra in enumerate(environ):
            command = hosts.inside(host, [*first, sys.executable, str(HERE / "worker.py"), peer])
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=base | extra)
            )
            if peer == "bare" and host == 0:
                self._answer(0)
        for host in range(count):
            self._answer(host)

    def _answer(self, host: int) -> Any:
        stream = self._processes[host].stdout
        assert stream is not None
        line = stream.readline()
        if not line:
            raise RuntimeError(f"{self.name}: rank {host} ended with {self._processes[host].wait(10)}")
        return json.loads(line)

    def measure(self, nbytes: int) -> dict[str, Any]:
        """Measure operations of a size and return rank 0's results; raise RuntimeError if a sum was wrong."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps([nbytes, WARM, COUNT]) + "\n")
            process.stdin.flush()
        answers = [self._answer(host) for host in range(len(self._processes))]
        if not all(answer["right"] for answer in answers):
            raise RuntimeError(f"{self.name}: wrong result at {nbytes} bytes")
        return dict(answers[0])

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def environments(hosts: DelayedHosts, peer: str, count: int, store: tuple[int, str], port: int) -> list[dict[str, str]]:
    if peer == "bare":
        where = {"BARE_ADDRESS": hosts.address(0), "BARE_PORT": str(port)}
        return [where | {"RANK": str(rank)} for rank in range(count)]
    if peer == "gloo":
        where = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
        where["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # hide warnings about addresses without names
        return [where | {"RANK": str(rank), "GLOO_SOCKET_IFNAME": f"delay{rank + 1}"} for rank in range(count)]
    from horovod.common.contract.worker_env import WorkerEnv

    return [
        WorkerEnv(
            rank=rank,
            size=count,
            cross_rank=rank,
            cross_size=count,
            hostname=f"host{rank}",
            rendezvous_addr=hosts.here,
            rendezvous_port=store[0],
            key_file=store[1],
        ).to_environ()
        | {key: value for key, value in os.environ.items() if key.startswith("HOROVOD_")}
        for rank in range(count)
    ]


def measure(options: argparse.Namespace) -> None:
    from horovod.common.contract.worker_env import make_key
    from horovod.common.store import StoreServer

    with DelayedHosts(max(options.hosts), options.delay) as hosts, tempfile.NamedTemporaryFile() as key_file:
        key = make_key()
        key_file.write(key)
        key_file.flush()
        server = StoreServer(key, hosts.here)
        peers = ["ours", *(["gloo"] if options.gloo else [])]
        samples: dict[tuple[str, int, int], list[float]] = {}
        delays: list[float] = []
        steady = True
        try:
            for turn in range(options.rounds):
                for number, (peer, count) in enumerate([("bare", 2), *((p, c) for c in options.hosts for p in peers)]):
                    port = 20000 + 100 * turn + number
                    environ = environments(hosts, peer, count, (server.address[1], key_file.name), port)
                    job = Job(hosts, peer, count, environ, ["chrt", "-r", "10"] if options.realtime else [])
                    try:
                        for size in options.sizes if peer != "bare" else [4]:
                            answer = job.measure(size)
                            if peer == "bare":
                                delays += [seconds / 2 for seconds in answer["seconds"]]
                                continue
                            samples.setdefault((peer, count, size), []).extend(answer["seconds"])
                            if peer == "ours":
                                steady = steady and answer["counters"]["negotiated"] == 0
                    finally:
                        job.close()
        finally:
            server.close()
    report(samples, delays, options, steady)


def report(
    samples: dict[tuple[str, int, int], list[float]], delays: list[float], options: argparse.Namespace, steady: bool
) -> None:
    one = statistics.median(delays)
    print(f"one message: {one * 1e6:.0f} us ({spread(delays)}), of which the switch adds {options.delay:g} us")
    for (peer, count, size), seconds in samples.items():
        middle = statistics.median(seconds)
        mean = statistics.fmean(seconds) * 1e6
        times = f"mean {mean:5.0f} us, median {middle / one:5.2f} messages"
        print(f"{peer:5} {count} hosts {size:8d} B: {middle * 1e6:7.0f} us ({spread(seconds)})  {times}")
    if not steady:
        print("ours: some of it ran before a schedule did")


def spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 10] * 1e6:.0f}-{ordered[len(ordered) * 9 // 10] * 1e6:.0f}"


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delay", type=float, default=200.0, help="microseconds added between two hosts (200)")
    parser.add_argument("--hosts", type=numbers, default=[2, 4, 8], help="how many, one rank each (2,4,8)")
    parser.add_argument("--sizes", type=numbers, default=[4, 4096], help="bytes (4,4096)")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured, in turns (5)")
    parser.add_argument("--realtime", action="store_true", help="ranks run before everything else on this machine")
    parser.add_argument("--gloo", action="store_true", help="torch.distributed on gloo as well")
    options = parser.parse_args()
    if not all(2 <= count <= 60 for count in options.hosts):
        parser.error(f"--hosts is {options.hosts}; accepted is 2 to 60")
    if reason := missing():
        sys.exit(f"not possible here: {reason}")
    measure(options)


if __name__ == "__main__":
    main()
