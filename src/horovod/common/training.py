"""Observations of training by frontends, to detect mistakes that make no operation fail.

Examples are a missing optimizer wrapper, broadcast or sampler, and ranks whose epochs have different lengths.

Ranks send observations to rank 0, which compares them and warns (``telemetry/training.py``). No rank waits for these
messages, so a program whose ranks do different things on purpose is not held up. A frontend reports only the first
steps and what happens once per epoch.
"""

from collections.abc import Callable, Sequence
from typing import Any

Say = Callable[[dict[str, Any]], None]


class Training:
    """Observations of this process in its job. ``open`` and ``close`` enclose the job."""

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
        """Number of optimizer steps with averaged gradients."""
        self.epochs = 0
        """Number of epochs of the data loader that supplied the batches of these steps."""
        self.epoch_batches = 0
        """Number of batches in the last epoch."""
        self.told_epochs = False
        """True once this rank has reported that ranks are in different epochs."""
        self.plain_steps = 0
        """Number of steps of optimizers that are not distributed."""
        self.plain_bytes = 0
        """Bytes that one averaging of such an optimizer's gradients takes at least."""
        self.remedy = ""
        self._begun = 0  # bytes of operations before the first plain step

    def open(self, say: Say, traffic: Callable[[], int]) -> None:
        """Begin a job of several ranks.

        Args:
            say: Sends an observation to rank 0.
            traffic: Returns the bytes of this rank's operations so far.
        """
        self._forget()
        self._say, self._traffic = say, traffic

    def close(self) -> None:
        """Stop observing at the job's end."""
        self._say, self._traffic = None, int

    @property
    def watched(self) -> bool:
        """True while rank 0 compares observations."""
        return self._say is not None

    def tell(self, about: str, of: str, ranks: Sequence[int], step: int = 0, **what: Any) -> None:
        """Send an observation to rank 0, which compares those of all ``ranks`` for the same ``of`` and ``step``.

        Args:
            about: Kind of the observation.
            of: What is observed, for example an optimizer.
            ranks: Ranks that send this observation.
            step: Step of the observation.
            **what: Values to compare.
        """
        if self._say is not None:
            self._say({"about": about, "of": of, "ranks": list(ranks), "step": step, **what})

    def plain_step(self, count_bytes: Callable[[], int], remedy: str) -> int:
        """Count a step of an optimizer that is not distributed, and return the number of such steps.

        Args:
            count_bytes: Returns the bytes that averaging the optimizer's gradients takes at least.
            remedy: How to fix it, in the terms of the framework.
        """
        self.remedy = remedy
        if self.plain_steps == 0:
            self._begun = self._traffic()
        if self.plain_steps < 2:
            self.plain_bytes = max(self.plain_bytes, count_bytes())
        self.plain_steps += 1
        return self.plain_steps

    def nothing_averaged(self) -> bool:
        """Return True if the program has apparently averaged no gradients.

        That is, only plain optimizers have taken steps, and operations since the first step had fewer bytes than one
        set of gradients.
        """
        return self.steps == 0 and self.plain_steps > 1 and self._traffic() - self._begun < self.plain_bytes

    def progress(self) -> str:
        """Return the progress of training, such as " after 9 steps", for the other ranks when this one ends."""
        if self.steps == 0:
            return ""
        steps = f" after {self.steps} {'step' if self.steps == 1 else 'steps'}"
        if not self.epochs:
            return steps
        epochs = f"{self.epochs} {'epoch' if self.epochs == 1 else 'epochs'}"
        return f"{steps} ({epochs}, with {self.epoch_batches} batches in the last one)"


training = Training()
