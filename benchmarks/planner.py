"""Compare the planner's predictions with runs on simulated hosts with rate-limited links.

    python benchmarks/planner.py --hosts 2 4 8 --rate 100 --width 256

Computation is simulated by sleeping, so that many ranks fit on a few cores. The profile that the planner uses is
recorded with one worker. The hosts are network namespaces (namespaces.py). Prints for each number of hosts and each
compression: the median step time, the prediction, its error, the share of the step in which a link at its full rate is
needed, and the number of cores that rank 0 used. If that number is far below one, the link was the limit. Needs root,
iproute2 and util-linux.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import namespaces
import torch
from hosts import OURS, Column, environments

import horovod.torch as hvd
from horovod.common.contract.worker_env import make_key
from horovod.common.store import StoreServer
from horovod.planner import network, profile
from horovod.planner.network import Layout
from horovod.planner.simulate import Settings, simulate

COMPRESSIONS = {"none": "none", "wire_fp16": "fp16", "wire_int8": "int8"}
TCP = 1448 / 1514
"""Payload per byte of an Ethernet frame."""
WARM_UP = 5


class Sleep(torch.autograd.Function):
    """Identity function whose backward pass sleeps for the given time."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(context.seconds)
        return gradients[0], None


class Layer(torch.nn.Module):
    """Linear layer whose forward and backward passes sleep for the given time."""

    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width, bias=False)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        found: torch.Tensor = Sleep.apply(self.linear(x), 2 * self.seconds)  # type: ignore[no-untyped-call]
        return found


def train(args: argparse.Namespace, compression: str) -> None:
    """Train on one rank. Rank 0 writes the profile of a step, or the seconds and CPU seconds of the steps."""
    torch.set_num_threads(1)
    hvd.init()
    model = torch.nn.Sequential(*(Layer(args.width, args.seconds) for _ in range(args.layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=getattr(hvd.Compression, compression)
    )
    if args.profile:
        hvd.profile(args.rank, steps=args.steps)
    seconds = []
    used = 0.0
    for step in range(WARM_UP + args.steps + 1):
        if step == WARM_UP:
            used = time.process_time()
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(torch.ones(4, args.width)).sum().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    found = {"seconds": seconds[WARM_UP:], "cpu_seconds": time.process_time() - used}
    if hvd.rank() == 0 and not args.profile:
        args.rank.write_text(json.dumps(found))
    hvd.shutdown()


def program(args: argparse.Namespace, out: Path, *more: str) -> list[str]:
    """Return the command that starts a rank."""
    sizes = ["--width", str(args.width), "--layers", str(args.layers), "--seconds", str(args.seconds)]
    return [sys.executable, __file__, *sizes, "--steps", str(args.steps), "--rank", str(out), *more]


def run(
    hosts: namespaces.Hosts, count: int, command: list[str], folder: Path, timeout: float, more: Mapping[str, str]
) -> str:
    """Run a job with one rank on each of the first ``count`` hosts, and return rank 0's output.

    ``more`` contains environment variables to add. Raises RuntimeError with the output if the job fails.
    """
    key = make_key()
    server = StoreServer(key, host=namespaces.GATEWAY)
    try:
        key_file = folder / f"key{count}"
        key_file.touch(mode=0o600)
        key_file.write_bytes(key)
        ranks = []
        for rank, extra in enumerate(environments(Column(OURS, OURS), count, 1, server.address, str(key_file))):
            argv = hosts.inside(rank, command)
            environment = {**os.environ, **extra, **more}
            ranks.append(subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        try:
            outputs = [process.communicate(timeout=timeout)[0].decode() for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        for process, output in zip(ranks, outputs, strict=True):
            if process.returncode:
                raise RuntimeError(f"a rank ended with {process.returncode}: {output[-2000:]}")
        return outputs[0]
    finally:
        server.close()


def row(args: argparse.Namespace, shape: profile.Profile, count: int, name: str, found: dict[str, Any]) -> list[str]:
    """Return a table row that compares a prediction with a run."""
    rate = args.rate * 1e6 / 8
    net = msgspec.structs.replace(network.assumed("cpu", rate), efficiency=TCP)
    settings = Settings(compression=COMPRESSIONS[name], fusion_threshold=args.fusion_threshold)
    step = simulate(shape, Layout(count), net, settings)
    measured = median(found["seconds"])
    spread = f"{min(found['seconds']) * 1e3:.0f}-{max(found['seconds']) * 1e3:.0f}"
    busy = 2 * (count - 1) / count * step.nbytes / rate / measured
    cores = found["cpu_seconds"] / sum(found["seconds"])
    return [
        f"{count} x {args.rate:g} Mbit/s",
        name,
        f"{measured * 1e3:.0f} ms ({spread})",
        f"{step.seconds * 1e3:.0f} ms",
        f"{step.seconds / measured - 1:+.1%}",
        f"{busy:.0%}",
        f"{cores:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4], help="numbers of hosts (default 2 4)")
    parser.add_argument("--rate", type=float, default=1000, help="Mbit/s of each host's link (default 1000)")
    parser.add_argument("--width", type=int, default=1024, help="of a layer; it has width^2 parameters (default 1024)")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.01, help="of a layer's forward (default 0.01)")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--fusion-threshold", type=int, default=128 << 20, help="bytes (default 128 MiB)")
    parser.add_argument("--compressions", nargs="+", default=list(COMPRESSIONS), choices=list(COMPRESSIONS))
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one run (default 300)")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        train(args, args.compressions[0])
        return
    if why := namespaces.missing():
        sys.exit(f"benchmarks/planner.py: {why}")
    # Make SIGTERM a normal exit, so that cleanup handlers stop the ranks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        recorded = folder / "profile.json"
        subprocess.run(
            program(args, recorded, "--profile"), check=True, timeout=args.timeout, stdout=subprocess.DEVNULL
        )
        shape = profile.load(recorded)
        print(f"one worker: {shape.seconds.step * 1e3:.0f} ms a step", flush=True)
        print("| Hosts | Compression | Measured | Predicted | Error | Link in use | Cores |\n" + "|---" * 7 + "|")
        with namespaces.Hosts(max(args.hosts), args.rate, incoming=True) as hosts:
            threshold = {"HOROVOD_FUSION_THRESHOLD": str(args.fusion_threshold)}
            for count in args.hosts:
                for name in args.compressions:
                    out = folder / f"{count}-{name}.json"
                    command = program(args, out, "--compressions", name)
                    run(hosts, count, command, folder, args.timeout, threshold)
                    cells = row(args, shape, count, name, json.loads(out.read_text()))
                    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
