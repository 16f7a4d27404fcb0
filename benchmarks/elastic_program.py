"""Worker of elastic.py: runs the same small training with each compared library and records its progress in a file."""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any


class Notes:
    """Event file. Each event is a line that begins with its time and is written in a single call."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.uname().nodename}-{os.getpid()}.lines").open("ab", buffering=0)

    def write(self, *fields: Any) -> None:
        self._file.write((" ".join(map(str, (time.monotonic(), *fields))) + "\n").encode())


# -- the model, which is the same for all peers ----------------------------------------------------------------------


def model_of(width: int, extra: int = 0) -> Any:
    """Create a small model whose state is enlarged by a frozen parameter of `extra` bytes.

    The data are a parameter instead of a buffer, because DDP copies buffers in each step.
    """
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, 10))
    if extra:
        model.extra = torch.nn.Parameter(torch.ones(extra // 4), requires_grad=False)
    return model


def optimizer_of(model: Any) -> Any:
    import torch

    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)


def loss_of(model: Any, step: int, rank: int) -> Any:
    """Return the loss for random data that depend only on the step and the rank."""
    import torch

    rng = torch.Generator().manual_seed(1000 * step + rank)
    data, labels = torch.randn(32, 64, generator=rng), torch.randint(0, 10, (32,), generator=rng)
    return torch.nn.functional.cross_entropy(model(data), labels)


# -- the peers -------------------------------------------------------------------------------------------------------


def horovod(options: argparse.Namespace, notes: Notes) -> None:
    """Train with Horovod until the driver asks this worker to stop."""
    import torch

    import horovod.torch as hvd

    torch.set_num_threads(1)
    model = model_of(options.width, options.extra)
    # Create the optimizer before init. Creating the first optimizer of a process takes about a second, during which the
    # other ranks would have to wait.
    optimizer = optimizer_of(model)
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        notes.write("begins", state.step, hvd.rank(), hvd.size())
        while True:
            state.check_host_updates()
            if state.step % 20 == 0:
                if not options.extra:
                    state.commit()
                if hvd.should_stop():
                    return
            optimizer.zero_grad()
            loss_of(model, state.step, hvd.rank()).backward()
            optimizer.step()
            state.step += 1
            notes.write("step", state.step, hvd.size())
            time.sleep(options.pause)

    train(state)


def bare(options: argparse.Namespace, notes: Notes) -> None:
    """Run steps that each perform one small allgather, without a framework, so that many workers fit on one machine."""
    from horovod.common import frontends
    from horovod.common.basics import HorovodBasics, failures
    from horovod.common.elastic import ObjectState, run_fn
    from horovod.common.objects import allgather_object, broadcast_object

    hvd, frontend = HorovodBasics("benchmark"), frontends.named("benchmark")

    def train(state: Any) -> None:
        notes.write("begins", state.step, hvd.rank(), hvd.size())
        while True:
            allgather_object(state.step, "step", frontend=frontend)
            state.step += 1
            state.commit()
            notes.write("step", state.step, hvd.size())
            time.sleep(options.pause)

    def reset() -> None:
        hvd.shutdown()
        hvd.init()

    def send(value: Any, root_rank: int = 0) -> Any:
        return broadcast_object(value, root_rank, "broadcast", frontend=frontend)

    def gather(value: Any, name: str) -> list[Any]:
        return allgather_object(value, name, frontend=frontend)

    hvd.init()
    run_fn(train, reset, failures)(ObjectState(send, hvd.rank, gather, step=0))


def torchrun(options: argparse.Namespace, notes: Notes) -> None:
    """Train with DDP. Rank 0 takes an in-memory snapshot every 10 steps; PyTorch's tutorial takes one on disk."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    model = model_of(options.width)
    optimizer = optimizer_of(model)
    step, snapshot = 0, options.snapshot
    if snapshot.exists():
        kept = torch.load(snapshot)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    notes.write("begins", step, dist.get_rank(), dist.get_world_size())
    while True:
        optimizer.zero_grad()
        loss_of(parallel, step, dist.get_rank()).backward()
        optimizer.step()
        step += 1
        notes.write("step", step, dist.get_world_size())
        if step % 10 == 0 and dist.get_rank() == 0:
            new = snapshot.with_suffix(f".{os.getpid()}")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
            new.rename(snapshot)
        time.sleep(options.pause)


FRONTENDS = {
    "horovod": horovod,
    "bare": bare,
    "torchrun": torchrun,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frontend", choices=FRONTENDS, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for what workers write down")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--extra", type=int, default=0, help="bytes of state that no step changes")
    parser.add_argument("--pause", type=float, default=0.005, help="s after each step")
    parser.add_argument("--snapshot", type=Path)
    options = parser.parse_args()
    FRONTENDS[options.frontend](options, Notes(options.folder))


if __name__ == "__main__":
    main()
