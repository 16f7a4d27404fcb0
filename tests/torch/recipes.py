"""What is to be true when a recipe of docs/pytorch has run: a function for each, which gets the program's variables.

Runs on every rank. Reference is the same training in one process, on the batches of all ranks together.
"""

import contextlib
import functools
import io
import os
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

LEARNED = 2.2  # the loss of a model that knows nothing is log(10) = 2.30


def execute(text: str) -> SimpleNamespace:
    """Runs a program; its variables, what it has printed and how often it has called the debugger."""
    stops: list[str] = []
    shown = io.StringIO()
    plain, hook = torch.compile, sys.breakpointhook
    torch.compile = functools.partial(plain, backend="aot_eager")  # the default one takes seconds to make C++
    sys.breakpointhook = lambda *_, **__: stops.append("here")
    variables: dict[str, Any] = {"__name__": "__main__"}
    try:
        with contextlib.redirect_stdout(shown):
            exec(compile(text, "program", "exec"), variables)
    finally:
        torch.compile, sys.breakpointhook = plain, hook
    return SimpleNamespace(**{**variables, "TEXT": text, "STOPS": stops, "SHOWN": shown.getvalue()})


def everybody(left: SimpleNamespace, epoch: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The batches of each step of an epoch, one for each rank."""
    loaders = []
    for rank in range(hvd.size()):
        sampler = DistributedSampler(left.train_set, num_replicas=hvd.size(), rank=rank)
        sampler.set_epoch(epoch)
        loaders.append(DataLoader(left.train_set, batch_size=32, sampler=sampler))
    return [list(step) for step in zip(*loaders, strict=True)]


def alone(left: SimpleNamespace, epochs: int = 1, passes: int = 1, clip: float | None = None, frozen: int = 0) -> Any:
    """A model trained in this process alone. ``frozen``: epochs without the first layer."""
    torch.manual_seed(1)  # rank 0's, whose weights are broadcast
    model = left.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
    for epoch in range(epochs):
        model[0].requires_grad_(epoch >= frozen)
        steps = everybody(left, epoch)
        for first in range(0, len(steps), passes):
            optimizer.zero_grad()
            batches = [batch for step in steps[first : first + passes] for batch in step]
            x, y = (torch.cat([batch[part] for batch in batches]) for part in (0, 1))
            F.cross_entropy(model(x), y).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return model


def assert_like(left: SimpleNamespace, reference: torch.nn.Module) -> None:
    for mine, theirs in zip(left.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def assert_learned(left: SimpleNamespace, model: Any = None) -> None:
    """The ranks have one model, and it knows more than nothing of the training data."""
    model = left.model if model is None else model
    hvd.check_in_sync(model)
    with torch.no_grad():
        model.eval()
        assert F.cross_entropy(model(left.images[:1280]), left.labels[:1280]) < LEARNED


def accumulation(left):
    assert_like(left, alone(left, epochs=2, passes=4))


def clipping(left):
    assert_like(left, alone(left, clip=0.5))
    assert len({round(norm, 6) for norm in hvd.allgather_object(left.norm.item())}) == 1


def mixed_precision(left):
    hvd.check_in_sync(left.scaler.get_scale())


def schedulers(left):
    hvd.check_in_sync(left.optimizer, left.warmup, left.plateau)
    assert left.warmup.last_epoch == len(left.loader)
    assert 0.001 <= left.optimizer.param_groups[0]["lr"] <= 0.1 * hvd.size() + 1e-9


def several(left):
    assert_learned(left, torch.nn.Sequential(left.body, left.head))
    hvd.check_in_sync(left.slow, left.fast)


def gan(left):
    hvd.check_in_sync(left.generator, left.discriminator, left.makes, left.judges)
    assert all(parameter.requires_grad for parameter in left.discriminator.parameters())
    # The discriminator's last gradients are those of its own turn.
    hvd.check_in_sync([parameter.grad for parameter in left.discriminator.parameters()])


def freezing(left):
    assert_like(left, alone(left, epochs=2, frozen=1))


def unused(left):
    hvd.check_in_sync(left.model)
    used, _, never = left.heads
    assert used.weight.grad is not None
    assert never.weight.grad is None


def statistics(left):
    buffers = dict(left.model.named_buffers())
    hvd.check_in_sync(buffers)
    assert buffers["1.running_mean"].abs().sum() > 0


def synchronised(left):
    statistics(left)
    assert isinstance(left.model[1], hvd.SyncBatchNorm)


def lbfgs(left):
    hvd.check_in_sync(left.loss)
    assert left.loss < 1.5


def compiled(left):
    assert_like(left, alone(left))
    assert hvd.rank() or list(torch.load("model.pt")) == list(left.make_model().state_dict())


def iterable(left):
    assert left.steps == 20
    seen = torch.cat([x for x, _ in left.islice(left.stream, left.steps)])
    everything = hvd.allgather(seen, name="seen").sort(dim=0).values  # each record once
    assert torch.equal(everything, left.images[:1280].sort(dim=0).values)


def joined(left):
    hvd.check_in_sync(left.model, left.optimizer)
    assert left.last == 1


def evaluation(left):
    hvd.check_in_sync(left.loss, left.accuracy)
    x, y = left.images[1280:], left.labels[1280:]
    with torch.no_grad():
        logits = left.model(x)
    assert abs(left.loss - F.cross_entropy(logits, y).item()) < 1e-6
    assert left.accuracy == (logits.argmax(1) == y).double().mean().item()
    assert ("held-out loss" in left.SHOWN) == (hvd.rank() == 0)


def checkpoint(left):
    """Two epochs, then all again from the file: the same as four at once."""
    if hvd.rank() == 0:
        os.remove("checkpoint.pt")
    half = left.TEXT.replace('"checkpoint.pt", 4', '"checkpoint.pt", 2')
    assert half != left.TEXT
    assert execute(half).scheduler.last_epoch == 2
    resumed = execute(left.TEXT)
    assert (resumed.epoch, resumed.scheduler.last_epoch) == (3, 4)
    hvd.check_in_sync(resumed.model, resumed.optimizer, resumed.scheduler)
    for once, twice in zip(left.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(once, twice)


def debugging(left):
    culprit = hvd.rank() == 1
    assert len(left.STOPS) == culprit
    assert (f"rank {hvd.rank()}, step {left.step}: the loss is nan" in left.SHOWN) == culprit
    hvd.check_in_sync(left.step)


def efficiency(left):
    assert all(seconds > 0 for pair in left.times for seconds in pair)
    hvd.check_in_sync(left.times)
    assert ("without exchange" in left.SHOWN) == (hvd.rank() == 0)


CHECKS = {
    "accumulation": (accumulation, assert_learned),
    "clipping the norm": (clipping, assert_learned),
    "mixed precision": (mixed_precision, assert_learned),
    "schedulers": (schedulers, assert_learned),
    "several optimizers": (several,),
    "GAN": (gan,),
    "freezing": (freezing, assert_learned),
    "unused parameters": (unused,),
    "batch normalisation": (statistics, assert_learned),
    "synchronised batch normalisation": (synchronised, assert_learned),
    "LBFGS": (lbfgs, assert_learned),
    "compile": (compiled, assert_learned),
    "IterableDataset": (iterable, assert_learned),
    "join": (joined, assert_learned),
    "evaluation": (evaluation,),
    "checkpoint": (checkpoint, assert_learned),
    "debugging": (debugging,),
    "scaling efficiency": (efficiency,),
}
"""By the name in the page."""
