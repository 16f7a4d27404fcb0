"""Observations of training by frontends, for mistakes that make no operation fail.

Such are a forgotten optimizer wrapper, broadcast or sampler, and ranks whose epochs have different lengths.

Ranks tell rank 0 of it by notes, which compares them and warns (``telemetry/training.py``). No note is waited for, so a
program whose ranks do different things on purpose is not held up. A frontend notices only the first steps and what
happens once an epoch.
"""

from collections.abc import Callable, Sequence
from typing import Any

Say = Callable[[dict[str, Any]], None]


class Training:
    """What this process does in its job. ``open`` and ``close`` enclose the job."""

    __slots__ = (
        "_begun",
        "_say",
        "_traffic",
        "epoch_batches",
        "epochs",
        "plain_bytes",
        "plain_steps",
        "remedy",
        "steps",
        "told_epochs",
    )

    def __init__(self) -> None:
        self._say: Say | None = None
        self._traffic: Callable[[], int] = int
        self._forget()

    def _forget(self) -> None:
        self.steps = 0
        """Steps of optimizers whose gradients are averaged."""
        self.epochs = 0
        """Epochs of the data loader that has given the batches of these steps."""
        self.epoch_batches = 0
        """Batches in the last of them."""
        self.told_epochs = False
        """True when this rank has told that ranks are in different epochs."""
        self.plain_steps = 0
        """Steps of other optimizers."""
        self.plain_bytes = 0
        """Bytes that averaging the gradients of one of them takes at least, once."""
        self.remedy = ""
        self._begun = 0  # bytes of operations before the first of those steps

    def open(self, say: Say, traffic: Callable[[], int]) -> None:
        """Begin a job of several ranks. ``say``: tells rank 0; ``traffic``: bytes of this rank's operations so far."""
        self._forget()
        self._say, self._traffic = say, traffic

    def close(self) -> None:
        """End the job."""
        self._say, self._traffic = None, int

    @property
    def watched(self) -> bool:
        """True while rank 0 compares what ranks notice."""
        return self._say is not None

    def tell(self, about: str, of: str, ranks: Sequence[int], step: int = 0, **what: Any) -> None:
        """Tell rank 0, which compares what all ``ranks`` tell about the same ``step`` of the same thing, ``of``."""
        if self._say is not None:
            self._say({"about": about, "of": of, "ranks": list(ranks), "step": step, **what})

    def plain_step(self, count_bytes: Callable[[], int], remedy: str) -> int:
        """Count a step of an optimizer that is not distributed, and return how many there were.

        Args:
            count_bytes: Returns the bytes that averaging its gradients takes at least.
            remedy: What to do about it, in the words of the framework.
        """
        self.remedy = remedy
        if self.plain_steps == 0:
            self._begun = self._traffic()
        if self.plain_steps < 2:
            self.plain_bytes = max(self.plain_bytes, count_bytes())
        self.plain_steps += 1
        return self.plain_steps

    def nothing_averaged(self) -> bool:
        """Return True if only plain optimizers have taken steps, and operations since the first step had fewer bytes
        than one set of their gradients: then the program has not averaged these by itself either."""
        return self.steps == 0 and self.plain_steps > 1 and self._traffic() - self._begun < self.plain_bytes

    def progress(self) -> str:
        """Return how far training has come, for the other ranks when this one ends, as in " after 9 steps"."""
        if self.steps == 0:
            return ""
        steps = f" after {self.steps} {'step' if self.steps == 1 else 'steps'}"
        if not self.epochs:
            return steps
        epochs = f"{self.epochs} {'epoch' if self.epochs == 1 else 'epochs'}"
        return f"{steps} ({epochs}, with {self.epoch_batches} batches in the last one)"


training = Training()
