"""Train on handwritten digits with the training strategy that is selected by --strategy.

    horovodrun -np 4 python examples/strategies/compare.py --strategy diloco
    horovodrun -np 4 python examples/strategies/compare.py --strategy all

All strategies take the same number of samples in total, so that their losses can be compared. A parameter server's
ranks do not train, so the other ranks take more steps. The data are part of scikit-learn; nothing is downloaded.
`--slow RANK` lets one rank compute at half speed, `--task chars` trains a small transformer on Python's source text.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import horovod.torch as hvd
from horovod.strategies import OuterSGD

STRATEGIES = ("sync", "local", "diloco", "gossip", "ps", "async", "easgd")


class Digits:
    """Training task: classify 1,797 images of digits, with one hidden layer and momentum SGD."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        data = load_digits()
        order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
        x = torch.tensor(data.data, dtype=torch.float32)[order] / 16
        y = torch.tensor(data.target)[order]
        self.train, self.test = (x[360:], y[360:]), (x[:360], y[:360])

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def optimizer(self, model: nn.Module, lr: float | None) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=lr or 0.05, momentum=0.9)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def batches(self, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        x, y = self.train
        while True:
            chosen = torch.randint(len(y), (size,), generator=generator)
            yield x[chosen], y[chosen]


class Chars:
    """Training task: predict characters of Python's source text, with a transformer block and AdamW."""

    CONTEXT = 32

    def __init__(self) -> None:
        text = "".join(p.read_text(errors="replace") for p in sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py")))
        codes = torch.tensor([min(ord(c), 127) for c in text])
        windows = codes[: len(codes) // 33 * 33].view(-1, self.CONTEXT + 1)
        order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
        windows = windows[order]
        self.train, self.held_out = windows[256:], windows[:256]
        self.test = (self.held_out[:, :-1], self.held_out[:, 1:])

    def model(self) -> nn.Module:
        return Transformer(self.CONTEXT)

    def optimizer(self, model: nn.Module, lr: float | None) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=lr or 3e-3)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    def batches(self, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            rows = self.train[torch.randint(len(self.train), (size,), generator=generator)]
            yield rows[:, :-1], rows[:, 1:]


class Transformer(nn.Module):
    """Character model with one transformer block, from codes (n, time) to logits (n, time, 128)."""

    def __init__(self, context: int, width: int = 48) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.block(self.characters(codes) + self.positions, src_mask=self.mask, is_causal=True))


def with_strategy(strategy: str, args: argparse.Namespace, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
    """Wrap the optimizer in the selected strategy. This is the only code that differs between strategies."""
    every = args.every
    return {
        "sync": lambda: hvd.DistributedOptimizer(optimizer, model.named_parameters()),
        "local": lambda: hvd.LocalSGD(optimizer, every),
        "diloco": lambda: hvd.DiLoCo(optimizer, OuterSGD(args.outer_lr, 0.9), every),
        "gossip": lambda: hvd.Gossip(optimizer),
        "ps": lambda: hvd.ParameterServer(optimizer, mode="sync"),
        "async": lambda: hvd.ParameterServer(optimizer, mode="async", staleness=args.staleness),
        "easgd": lambda: hvd.ParameterServer(optimizer, mode="easgd", every=every),
    }[strategy]()


@torch.no_grad()
def held_out_loss(task: Any, model: nn.Module) -> float:
    return float(task.loss(model, task.test))


def train(args: argparse.Namespace, task: Any, model: nn.Module, optimizer: Any, workers: int) -> dict[str, Any]:
    """Train on this rank's share of the samples, and return the measured losses and the bytes sent."""
    steps = args.samples // (args.batch * workers)
    curve = []
    busy = 0.0
    began = time.perf_counter()
    batches = itertools.islice(task.batches(args.batch, args.seed * 1000 + hvd.rank()), steps)
    for step, batch in enumerate(batches, 1):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        seconds = time.perf_counter() - start
        if args.slow == hvd.rank():
            time.sleep(seconds)  # half speed
        busy += seconds
        optimizer.step()
        if step % max(1, steps // 8) == 0:
            curve.append((step * args.batch * workers, held_out_loss(task, model), time.perf_counter() - began))
    total = time.perf_counter() - began
    return {"steps": steps, "curve": curve, "seconds": total, "busy": busy}


def compare(strategy: str, args: argparse.Namespace, task: Any) -> dict[str, Any]:
    """Train with one strategy and return its results. All strategies start with the same parameters."""
    torch.manual_seed(args.seed)
    model = task.model()
    optimizer = with_strategy(strategy, args, task.optimizer(model, args.lr), model)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    result: dict[str, Any] = {}
    if strategy in ("ps", "async", "easgd"):
        # The last rank is the parameter server. It holds the parameters and does not train.
        if not optimizer.serve():
            result = train(args, task, model, optimizer, hvd.size() - 1)
            optimizer.finish()
    else:
        result = train(args, task, model, optimizer, hvd.size())
        # Average the parameters, because they differ between ranks after gossip or an unfinished round.
        for p in model.parameters():
            p.data = hvd.allreduce(p.data)
    staleness = getattr(getattr(optimizer, "strategy", None), "histogram", {})
    result |= {"strategy": strategy, "parameters": sum(p.numel() for p in model.parameters())}
    result |= {"loss": held_out_loss(task, model), "staleness": dict(sorted(staleness.items()))}
    if hvd.rank() == 0:
        print(
            f"{strategy:7s} {hvd.size()} ranks, {result['steps']} steps: held-out loss {result['loss']:.4f}"
            f" in {result['seconds']:.1f} s" + (f", staleness {result['staleness']}" if staleness else ""),
            flush=True,
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=(*STRATEGIES, "all"), default="all", help="default %(default)s")
    parser.add_argument("--task", choices=("digits", "chars"), default="digits")
    parser.add_argument("--samples", type=int, default=60_000, help="in total, over all ranks")
    parser.add_argument("--batch", type=int, default=16, help="samples per step and rank")
    parser.add_argument("--lr", type=float, help="learning rate; each task has a default")
    parser.add_argument("--every", type=int, default=20, help="local steps between exchanges: local, diloco, easgd")
    parser.add_argument("--outer-lr", type=float, default=0.7, help="outer learning rate of diloco")
    parser.add_argument("--staleness", type=int, default=4, help="bound of async")
    parser.add_argument("--slow", type=int, default=-1, help="rank that computes at half speed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()

    torch.set_num_threads(1)
    hvd.init(process_sets="dynamic")
    task = Digits() if args.task == "digits" else Chars()
    strategies = STRATEGIES if args.strategy == "all" else (args.strategy,)
    results = [compare(strategy, args, task) for strategy in strategies]
    if args.json and hvd.rank() == 0:
        args.json.write_text(json.dumps(results))
    hvd.shutdown()


if __name__ == "__main__":
    main()
