"""Models, optimizers and batches of the script on this rank."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.weak import WeakIdKeyDictionary

from horovod.auto.session import refuse, session


@dataclass(frozen=True)
class Batch:
    """Sizes of a batch: ``total`` samples on all ranks, ``own`` on this one, usually ``full`` on each."""

    total: int
    own: int
    full: int = 0

    @property
    def weight(self) -> float:
        """Fraction of the samples that this rank has."""
        return self.own / self.total


class Training:
    """Models and optimizers of the script, in the order in which it created them, and its position in the data."""

    def __init__(self) -> None:
        self.modules: WeakKeyDictionary[torch.nn.Module, None] = WeakKeyDictionary()
        self.optimizers: WeakKeyDictionary[torch.optim.Optimizer, bool] = WeakKeyDictionary()  # True: was broadcast
        self.sent = WeakIdKeyDictionary()  # tensors that were broadcast
        self.position = WeakIdKeyDictionary()  # number of each parameter of an optimizer
        self.reduced: set[torch.Tensor] = set()  # parameters whose gradient is equal on all ranks
        self.versions: dict[torch.Tensor, tuple[int, int]] = {}  # of gradients, after the last backward pass
        self.stray = ""  # line of a backward pass outside a loop over a divided loader
        self.passes: WeakSet[Any] = WeakSet()  # iterators of divided loaders
        self.backwards = 0  # number of backward passes
        self.streaming = False  # True while a divided IterableDataset is read

    def batch(self) -> Batch | None:
        """Return the current batch, or None outside a loop over a divided loader."""
        if session.suspended or not self.passes:
            return None
        found = {one.batch for one in self.passes if one.batch is not None}
        if len(found) > 1:
            refuse("it reads two loaders at once, whose batches differ in size", "give both loaders drop_last=True")
        return next(iter(found), None)

    def evaluating(self) -> bool:
        """Return True if gradients are disabled, or all modules that are trained are in evaluation mode."""
        known = [m for m in self.modules if any(p in self.position for p in m._parameters.values() if p is not None)]
        return not torch.is_grad_enabled() or (bool(known) and not any(m.training for m in known))


training = Training()


def rows(items: Any, rank: int, size: int) -> Any:
    """Return every ``size``-th of the items from ``rank`` on, or the first one, with weight 0, if there is none."""
    return items[rank::size] if len(items) > rank else items[:1]
