"""Checks on each rank after a recipe of docs/pytorch; they get the program's variables."""

import contextlib
import functools
import io
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

import horovod.torch as hvd

LEARNED = 2.2  # an untrained model's loss is log(10) = 2.30


def execute(text: str) -> SimpleNamespace:
    """Run a program; return its variables, its output and how often it called the debugger."""
    stops: list[str] = []
    shown = io.StringIO()
    plain, hook = torch.compile, sys.breakpointhook
    torch.compile = functools.partial(plain, backend="aot_eager")  # the default backend takes seconds to generate C++
    sys.breakpointhook = lambda *_, **__: stops.append("here")
    variables: dict[str, Any] = {"__name__": "__main__"}
    try:
        with contextlib.redirect_stdout(shown):
            exec(compile(text, "program", "exec"), variables)
    finally:
        torch.compile, sys.breakpointhook = plain, hook
    return SimpleNamespace(**{**variables, "TEXT": text, "STOPS": stops, "SHOWN": shown.getvalue()})


def in_sync(left: SimpleNamespace) -> None:
    """Check that ranks have the same models, optimizers and schedulers."""
    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    hvd.check_in_sync({name: value for name, value in sorted(vars(left).items()) if isinstance(value, kinds)})


def learned(left: SimpleNamespace) -> None:
    """Check that ranks have the same model, and that it has learned from the training data."""
    in_sync(left)
    with torch.no_grad():
        left.model.eval()
        assert F.cross_entropy(left.model(left.images[:1280]), left.labels[:1280]) < LEARNED


def iterable(left):
    assert left.steps == 20
    seen = torch.cat([x for x, _ in left.islice(left.stream, left.steps)])
    gathered = hvd.allgather(seen, name="seen").sort(dim=0).values  # each record once
    assert torch.equal(gathered, left.images[:1280].sort(dim=0).values)


def evaluation(left):
    hvd.check_in_sync(left.loss, left.accuracy)
    x, y = left.images[1280:], left.labels[1280:]
    with torch.no_grad():
        logits = left.model(x)
    assert abs(left.loss - F.cross_entropy(logits, y).item()) < 1e-6
    assert left.accuracy == (logits.argmax(1) == y).double().mean().item()
    assert ("held-out loss" in left.SHOWN) == (hvd.rank() == 0)


def checkpoint(left):
    """Train two epochs, then resume from the file: equal to four epochs at once."""
    text = left.TEXT.replace('"checkpoints", 4', '"halves", 4')
    assert execute(text.replace('"halves", 4', '"halves", 2')).scheduler.last_epoch == 2
    resumed = execute(text)
    assert (resumed.epoch, resumed.scheduler.last_epoch) == (3, 4)
    hvd.check_in_sync(resumed.model, resumed.optimizer, resumed.scheduler)
    for once, twice in zip(left.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(once, twice)


def resume(left):
    """Resume in the middle of the second epoch."""
    resumed = execute(left.TEXT)
    assert (left.step, resumed.step) == (40, 40)
    assert (resumed.epoch, resumed.index, resumed.sampler.epoch) == (1, 9, 1)
    hvd.check_in_sync(resumed.model)


def debugging(left):
    culprit = hvd.rank() == 1
    assert len(left.STOPS) == culprit
    assert (f"rank {hvd.rank()}, step {left.step}: the loss is nan" in left.SHOWN) == culprit
    hvd.check_in_sync(left.step)


def padded(left):
    """Check that ranks have the same model, and that it has learned to count."""
    in_sync(left)
    assert left.model(torch.arange(50)).argmax(1).equal((torch.arange(50) + 1) % 50)


def efficiency(left):
    assert all(seconds > 0 for pair in left.times for seconds in pair)
    hvd.check_in_sync(left.times)
    assert ("without exchange" in left.SHOWN) == (hvd.rank() == 0)


CHECKS = {
    "accumulation": (learned,),
    "clipping the norm": (learned,),
    "mixed precision": (learned,),
    "schedulers": (learned,),
    "several optimizers": (in_sync,),
    "GAN": (in_sync,),
    "freezing": (learned,),
    "unused parameters": (in_sync,),
    "batch normalisation": (learned,),
    "synchronised batch normalisation": (learned,),
    "LBFGS": (learned,),
    "compile": (learned,),
    "IterableDataset": (iterable, learned),
    "padded batches": (padded,),
    "sync": (learned,),
    "join": (learned,),
    "evaluation": (evaluation,),
    "checkpoint": (checkpoint, learned),
    "resume": (learned, resume),
    "debugging": (debugging,),
    "scaling efficiency": (efficiency,),
}
"""Checks by the recipe's name in the page."""
