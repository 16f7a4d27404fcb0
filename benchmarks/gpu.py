"""Measure allreduces of GPU tensors, and the cost of DistributedOptimizer in a training step on a GPU.

    horovodrun -np 2 python benchmarks/gpu.py [--json FILE] [--label NAME] [--quick]
    horovodrun -np 1 python benchmarks/gpu.py --optimizer [--json FILE]
    horovodrun -np 2 python benchmarks/gpu.py --nccl [--json FILE]

Allreduces are compared with torch.distributed on gloo, and with copies to pinned memory. --nccl measures what the
engine adds to NCCL. To NCCL, ranks on one GPU appear as ranks on several hosts. Ranks are assigned to GPUs in turn, so
with one GPU all ranks share it. The alternatives are measured in turn in the same processes. --device cpu tests the
program without a GPU. benchmarks/README.md explains the tables.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases import KIB, MIB
from gpu_tables import HEAD, Seconds, continuations, copies, row, steps

import horovod
import horovod.torch as hvd
from horovod.common.devices import nvml
from horovod.common.frontends import TORCH

FULL = [4, 64, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB]
FEW = [4, 4 * KIB, MIB, 16 * MIB, 256 * MIB]
QUICK = [4, 4 * KIB, MIB, 5 * MIB]


def counts(nbytes: int) -> tuple[int, int, int]:
    """Return three counts: operations per round, rounds, and warm-up operations before the first round."""
    for limit, found in (
        (64 * KIB, (40, 5, 60)),
        (MIB, (20, 5, 40)),
        (16 * MIB, (6, 5, 15)),
        (256 * MIB, (3, 3, 5)),
    ):
        if nbytes <= limit:
            return found
    return 2, 2, 2


class Place:
    """Device for a benchmark's tensors, with a method that synchronizes the device."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        if self.cuda:
            torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
        self.device = torch.device(device)

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def name(self) -> str:
        return torch.cuda.get_device_name() if self.cuda else "CPU"


def timed(run: Callable[[], Any], place: Place, times: int) -> list[float]:
    """Return the seconds that each operation takes, from its call until its result is available."""
    seconds = []
    for _ in range(times):
        place.wait()
        start = time.perf_counter()
        run()
        place.wait()
        seconds.append(time.perf_counter() - start)
    return seconds


def bare_copies(place: Place, nbytes: int) -> dict[str, float]:
    """Measure copies between GPU and pinned memory on all ranks at the same time.

    Return the rate to the host, the rate to the device, and the rate in each direction while both run at the same time,
    in bytes per second per rank.
    """
    there, other = (torch.zeros(nbytes, dtype=torch.uint8, device=place.device) for _ in range(2))
    here, second = (torch.zeros(nbytes, dtype=torch.uint8, pin_memory=place.cuda) for _ in range(2))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()] if place.cuda else []

    def both() -> None:
        if not place.cuda:
            here.copy_(there), other.copy_(second)
            return
        with torch.cuda.stream(streams[0]):
            here.copy_(there, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            other.copy_(second, non_blocking=True)

    ways = {
        "to the host": lambda: here.copy_(there, non_blocking=True),
        "to the device": lambda: there.copy_(here, non_blocking=True),
        "both at once": both,
    }
    rates = {}
    for name, run in ways.items():
        timed(run, place, 2)
        hvd.barrier()
        rates[name] = nbytes / statistics.median(timed(run, place, 7))
    # Count both read and written bytes. Measure one rank at a time, because the ranks share the GPU.
    for rank in range(hvd.size()):
        hvd.barrier()
        if rank == hvd.rank():
            timed(lambda: other.copy_(there), place, 2)
            rates["on the device"] = 2 * nbytes / statistics.median(timed(lambda: other.copy_(there), place, 7))
    hvd.barrier()
    return rates


def ways(nbytes: int, place: Place) -> dict[str, Callable[[], Any]]:
    count = max(1, nbytes // 4)
    tensor, gloo = torch.zeros(count, device=place.device), torch.zeros(count, device=place.device)
    return {
        "horovod": lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=f"gpu.{nbytes}"),
        "gloo": lambda: dist.all_reduce(gloo),
    }


def measure(nbytes: int, place: Place) -> Seconds:
    inner, rounds, warm_up = counts(nbytes)
    every = ways(nbytes, place)
    medians: Seconds = {name: [] for name in every}
    for name, run in every.items():
        timed(run, place, warm_up if name == "horovod" else min(warm_up, 5))
    for _ in range(rounds):
        for name, run in every.items():
            hvd.barrier()
            medians[name].append(statistics.median(timed(run, place, inner)))
    return medians


def call_seconds(nbytes: int, place: Place) -> float:
    """Return the median duration in seconds of calls that start an asynchronous operation while the GPU is busy."""
    x = torch.zeros(max(1, nbytes // 4), device=place.device)
    times = []
    for _ in range(40):
        if place.cuda:
            # Keep the GPU busy for about a millisecond.
            torch.cuda._sleep(2_000_000)
        start = time.perf_counter()
        handle = hvd.allreduce_async_(x, op=hvd.Sum, name=f"call.{nbytes}")
        times.append(time.perf_counter() - start)
        hvd.synchronize(handle)
        place.wait()
    return statistics.median(times[10:])


def slowest(ranks: list[Seconds]) -> Seconds:
    """Return the duration of each round, measured on the slowest rank."""
    return {name: [max(values) for values in zip(*(r[name] for r in ranks), strict=True)] for name in ranks[0]}


def meet(backend: str) -> None:
    """Initialize the default process group of torch.distributed with all ranks."""
    # Use the loopback interface, because all ranks are on this host.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meeting = hvd.broadcast_object(tempfile.mktemp() if hvd.rank() == 0 else None, 0)
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=hvd.rank(), world_size=hvd.size())


def allreduces(place: Place, quick: bool, few: bool) -> dict[str, Any]:
    meet("gloo")
    rates = hvd.allgather_object(bare_copies(place, (16 if quick else 256) * MIB))
    run: dict[str, Any] = {"bare copies": {name: min(r[name] for r in rates) for name in rates[0]}, "seconds": []}
    run |= {"ranks": hvd.size(), "by ipc": place.cuda and os.environ.get("HOROVOD_CUDA_IPC", "1") != "0"}
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, {place.name()}, torch {torch.__version__}\n{copies(run)}\n\n{HEAD}", flush=True)
    for nbytes in QUICK if quick else FEW if few else FULL:
        call = max(hvd.allgather_object(call_seconds(nbytes, place)))
        seconds = slowest(hvd.allgather_object(measure(nbytes, place)))
        run["seconds"].append({"bytes": nbytes, "call": call, **seconds})
        if hvd.rank() == 0:
            print(row(run["seconds"][-1], run), flush=True)
    dist.destroy_process_group()
    return run


def continuation(place: Place, quick: bool) -> dict[str, Any]:
    """Measure NCCL allreduces of 4 KiB with the engine and with torch.distributed.

    Times are measured from the call until the stream proceeds to the next operation.
    """
    meet("nccl" if place.cuda else "gloo")
    horovod, nccl = (torch.zeros(KIB, device=place.device) for _ in range(2))
    every: dict[str, Callable[[], Any]] = {
        "horovod": lambda: hvd.allreduce_(horovod, op=hvd.Sum, name="continuation"),
        "NCCL alone": lambda: dist.all_reduce(nccl),
    }
    inner, rounds, warm_up = (5, 3, 20) if quick else (30, 5, 200)
    medians: Seconds = {name: [] for name in every}
    for run in every.values():
        # Wait until the NCCL communicator is ready, because operations run on the host until then.
        timed(run, place, warm_up)
    by_the_host = TORCH.engine.stats()["operations"]
    timed(every["horovod"], place, 3)
    by_nccl = TORCH.engine.stats()["operations"] == by_the_host
    for _ in range(rounds):
        for name, run in every.items():
            hvd.barrier()
            medians[name].append(statistics.median(timed(run, place, inner)))
    dist.destroy_process_group()
    found = {"ranks": hvd.size(), "by nccl": by_nccl, "seconds": slowest(hvd.allgather_object(medians))}
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, {place.name()}\n\n{continuations(found)}", flush=True)
    return found


def network(quick: bool) -> tuple[str, torch.nn.Module, tuple[int, ...]]:
    """Return the networks to measure, as (name, model, batch shape)."""
    if not quick:
        try:
            from torchvision.models import resnet50

            return "ResNet-50, 64 images", resnet50(), (64, 3, 224, 224)
        except ImportError as error:
            if hvd.rank() == 0:
                print(f"torchvision is missing ({error}): a small network in place of ResNet-50", flush=True)
    layers = [torch.nn.Conv2d(3, 16, 3), *(torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(20))]
    return "21 convolutions, 8 images", torch.nn.Sequential(*layers), (8, 3, 32, 32)


def training_steps(place: Place, quick: bool) -> dict[str, Any]:
    """Measure the mean duration of a training step with and without DistributedOptimizer.

    Each step is timed twice: until the calls return, and until the GPU has finished.
    """
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    label, model, shape = network(quick)
    images = torch.randn(shape, device=place.device)
    models = {"alone": model.to(place.device), "wrapped": copy.deepcopy(model).to(place.device)}
    optimizers: dict[str, Any] = {n: torch.optim.SGD(m.parameters(), lr=1e-4, momentum=0.9) for n, m in models.items()}
    optimizers["wrapped"] = hvd.DistributedOptimizer(optimizers["wrapped"], models["wrapped"].named_parameters())

    def step(name: str) -> None:
        optimizers[name].zero_grad()
        models[name](images).square().mean().backward()
        optimizers[name].step()

    inner, rounds = (3, 3) if quick else (8, 9)
    for name in models:
        for _ in range(inner):
            step(name)
    seconds: Seconds = {name: [] for name in models}
    calls: Seconds = {name: [] for name in models}
    for number in range(rounds):
        for name in sorted(models, reverse=number % 2 == 1):
            hvd.barrier()
            place.wait()
            start = time.perf_counter()
            for _ in range(inner):
                step(name)
            calls[name].append((time.perf_counter() - start) / inner)
            place.wait()
            seconds[name].append((time.perf_counter() - start) / inner)
    added = [100 * (w / a - 1) for w, a in zip(seconds["wrapped"], seconds["alone"], strict=True)]
    found = {"model": label, "ranks": hvd.size(), "seconds": seconds, "calls": calls, "added, %": added}
    if hvd.rank() == 0:
        print(f"\n{hvd.size()} ranks, {place.name()}: {steps(found)}", flush=True)
    return found


def versions() -> str:
    found = nvml.survey(pairs=False)
    nccl = hvd.nccl_built()
    names = {
        "horovod": horovod.__version__,
        "commit": os.environ.get("HVD_COMMIT", ""),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or "",
        "driver": found.driver,
        "NCCL": f"{nccl // 10000}.{nccl // 100 % 100}.{nccl % 100}" if nccl else "",
    }
    return ", ".join(f"{name} {value}" for name, value in names.items() if value)


def main() -> None:
    parser = argparse.ArgumentParser(description="What operations on tensors of a GPU take.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes, a small network")
    parser.add_argument("--few", action="store_true", help="five sizes")
    parser.add_argument("--optimizer", action="store_true", help="training steps instead of operations")
    parser.add_argument("--nccl", action="store_true", help="4 KiB by NCCL, beside NCCL alone")
    parser.add_argument("--label", default="", help="of these figures in the file; default: what is measured")
    parser.add_argument("--json", type=Path, help="a file to which the figures are added")
    args = parser.parse_args()
    part = "optimizer" if args.optimizer else "continuation" if args.nccl else "allreduce"
    # Set NCCL's variables before it starts, because NCCL reads them only at startup.
    if args.nccl:
        os.environ["NCCL_HOSTID"] = os.environ.get("HOROVOD_RANK", "0")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    hvd.init()
    place = Place(args.device)
    if part == "allreduce":
        found = allreduces(place, args.quick, args.few)
    else:
        found = (training_steps if part == "optimizer" else continuation)(place, args.quick)
    if args.json and hvd.rank() == 0:
        about = {"part": part, "device": place.name(), "date": time.strftime("%Y-%m-%d"), "versions": versions()}
        before = json.loads(args.json.read_text()) if args.json.exists() else {}
        args.json.write_text(json.dumps({**before, args.label or part: {**about, **found}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
