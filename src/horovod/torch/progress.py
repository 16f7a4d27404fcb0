"""Progress of a rank: counters that ranks compare in every exchange (ballot.py)."""

from typing import Any

from horovod.common.faces import TORCH as face
from horovod.common.training import training
from horovod.torch import ballot
from horovod.torch.ops import control


class Count:
    """Counter that is equal on all ranks as long as they do the same.

    It restarts with each job, because ranks may be new in it, and with each ``hvd.join()``, because ranks join after
    different numbers of steps.
    """

    def __init__(self) -> None:
        self._job: Any = face.job
        self._joins = control.joins
        self._failures = 0
        self._number = 0

    def now(self) -> int:
        """Return the count."""
        if self._job is not face.job or self._joins != control.joins:
            self._job, self._joins = face.job, control.joins
            self._number = 0
        return self._number

    def add(self) -> int:
        """Increment the count and return it."""
        self._number = self.now() + 1
        return self._number

    def restart(self) -> None:
        """Restart from 0, on all ranks, after a failure that all have seen."""
        self._failures += 1
        self._number = 0

    @property
    def era(self) -> str:
        """Identifier that distinguishes this count from those before a restart."""
        return f"{self._joins}.{self._failures}"


epochs = Count()
"""Epochs of the data loader used for training."""


class Progress:
    """Progress of one optimizer."""

    def __init__(self) -> None:
        self.steps = Count()

    def check(self, outcome: ballot.Outcome, ranks: list[int] | None) -> None:
        """Compare this rank's progress with the outcome of a round.

        If ranks are in different epochs, rank 0 only warns.

        Raises:
            HorovodInternalError: The round has no correct result, or ranks are in different steps. The step count
                restarts, because programs may continue after the error.
        """
        try:
            ballot.check(outcome, self.steps.now())
        except Exception:
            self.steps.restart()
            raise
        if outcome.last_epoch != outcome.first_epoch and training.watched and not training.told_epochs:
            training.told_epochs = True
            training.tell("epochs", "", ranks or (), epochs=training.epochs, batches=training.epoch_batches)
