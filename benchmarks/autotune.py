"""Compare step times with the default settings and with those that autotune finds.

    python benchmarks/autotune.py small                                # 200 small tensors, on this host
    python benchmarks/autotune.py resnet50 --hosts 4 --rate 1000       # on simulated hosts
    python benchmarks/autotune.py layers --hosts 4 --rate 100 --delay 5

Runs one job that searches and stores its result. Then it alternates jobs with the defaults and jobs that use the
result, and prints the median step of each with its range over the jobs. Simulated hosts are network namespaces
(namespaces.py) with one rank each; ``layers`` sleeps instead of computing, so that the ranks fit on a few cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import namespaces
from planner import run as run_on_hosts

HERE = Path(__file__)
Environment = Mapping[str, str]


def program(workload: str, steps: int, seconds: float, out: str) -> None:
    """Train on one rank. Rank 0 writes the median duration in seconds of the later steps."""
    import time

    import torch
    from cases import resnet50
    from planner import Layer

    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    width = 128
    if workload == "small":
        model = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(width)) for _ in range(200))
        loss = lambda: sum((p * p).sum() for p in model)  # noqa: E731
    elif workload == "resnet50":
        model = torch.nn.ParameterList(torch.nn.Parameter(torch.full(shape, 0.01)) for shape in resnet50())
        loss = lambda: sum(p.sum() for p in model)  # noqa: E731
    elif workload == "gpt":
        layers = [torch.nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(4)]
        model = torch.nn.Sequential(torch.nn.Embedding(96, width), *layers, torch.nn.Linear(width, 96))
        text = torch.randint(96, (1, 64))
        loss = lambda: model(text).square().mean()  # noqa: E731
    else:
        small, large = ([Layer(n, seconds) for _ in range(count)] for n, count in ((width, 16), (4 * width, 5)))
        # Put the largest tensor last, as in VGG.
        model = torch.nn.Sequential(*small, torch.nn.Linear(width, 4 * width), *large)
        loss = lambda: model(torch.ones(4, width)).square().mean()  # noqa: E731
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-3), model.named_parameters())
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    if hvd.rank() == 0:
        Path(out).write_text(json.dumps(median(times[steps // 3 :])))
    hvd.shutdown()


def here(ranks: int, command: list[str], environment: Environment, timeout: float) -> str:
    """Run a job on the local host and return its output."""
    launcher = [sys.executable, "-m", "horovod.runner", "-np", str(ranks), *command]
    done = subprocess.run(
        launcher, env={**os.environ, **environment}, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stderr


def compare(args: argparse.Namespace, folder: Path, run: Callable[[list[str], Environment], str]) -> None:
    """Run all jobs of a workload and print one table row."""
    out = folder / "out.json"

    def job(steps: int, **environment: str) -> tuple[float, str]:
        sizes = ["--steps", str(steps), "--seconds", str(args.seconds)]
        argv = [sys.executable, str(HERE), args.workload, "--rank", str(out), *sizes]
        text = run(argv, {"XDG_CACHE_HOME": str(folder), **environment})
        return json.loads(out.read_text()), text

    candidates = {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": str(args.candidates)}
    sample = {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": str(args.sample)}
    _, text = job(args.steps, HOROVOD_AUTOTUNE="1", **candidates, **sample)
    print(*re.findall(r"autotune: .*", text), sep="\n", flush=True)
    default, tuned = [], []
    for repeat in range(args.repeats):
        # Alternate the order, because the second job of a pair can be faster than the first with the same settings.
        for reuse in (repeat % 2, 1 - repeat % 2):
            (tuned if reuse else default).append(job(args.short, HOROVOD_AUTOTUNE_REUSE=str(reuse))[0])
    delay = f", {args.delay:g} ms" if args.delay else ""
    where = f"{args.hosts} hosts, {args.rate:g} Mbit/s{delay}" if args.hosts else f"{args.ranks} ranks, 1 host"

    def cell(times: list[float]) -> str:
        return f"{median(times) * 1e3:.1f} ({min(times) * 1e3:.1f}-{max(times) * 1e3:.1f})"

    gain = 1 - median(tuned) / median(default)
    print(f"| {args.workload} | {where} | {cell(default)} | {cell(tuned)} | {gain:+.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=["small", "resnet50", "gpt", "layers"])
    parser.add_argument("--ranks", type=int, default=2, help="ranks on this host (default 2)")
    parser.add_argument("--hosts", type=int, default=0, help="simulated hosts with one rank each (default: none)")
    parser.add_argument("--rate", type=float, default=1000, help="Mbit/s of each simulated host's link (default 1000)")
    parser.add_argument("--delay", type=float, default=0.0, help="ms of a packet between hosts (default: none)")
    parser.add_argument("--steps", type=int, default=800, help="steps of the job that searches (default 800)")
    parser.add_argument("--short", type=int, default=90, help="steps of the other jobs (default 90)")
    parser.add_argument("--sample", type=int, default=10, help="steps per sample (default 10)")
    parser.add_argument("--candidates", type=int, default=20, help="maximum number of candidates (default 20)")
    parser.add_argument(
        "--seconds", type=float, default=0.001, help="of a layer's forward in ``layers`` (default 0.001)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="jobs with each settings (default 3)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one job (default 300)")
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        program(args.workload, args.steps, args.seconds, args.rank)
        return
    # Make SIGTERM a normal exit, so that cleanup handlers stop the ranks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        if not args.hosts:
            compare(args, folder, lambda argv, more: here(args.ranks, argv, more, args.timeout))
            return
        if why := namespaces.missing():
            sys.exit(f"benchmarks/autotune.py: {why}")
        with namespaces.Hosts(args.hosts, args.rate, incoming=True, delay_ms=args.delay) as hosts:
            compare(args, folder, lambda argv, more: run_on_hosts(hosts, args.hosts, argv, folder, args.timeout, more))


if __name__ == "__main__":
    main()
