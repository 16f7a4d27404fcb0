"""How far a rank has come: numbers that ranks compare in every exchange (ballot.py)."""

from typing import Any

from horovod.common.faces import TORCH as face
from horovod.common.training import training
from horovod.torch import ballot
from horovod.torch.ops import control


class Count:
    """A number that is equal on all ranks as long as they do the same.

    Counted since the job began, because ranks may be new in it, and since the last ``hvd.join()``, because ranks join
    after different numbers of steps.
    """

    def __init__(self) -> None:
        self._job: Any = face.job
        self._joins = control.joins
        self._failures = 0
        self._number = 0

    def now(self) -> int:
        """Return the number."""
        if self._job is not face.job or self._joins != control.joins:
            self._job, self._joins = face.job, control.joins
            self._number = 0
        return self._number

    def add(self) -> int:
        """Count one more and return the new number."""
        self._number = self.now() + 1
        return self._number

    def restart(self) -> None:
        """Count from 0 again, on all ranks, after a failure that all have seen."""
        self._failures += 1
        self._number = 0

    @property
    def era(self) -> str:
        """A text that tells this count from those before it began anew."""
        return f"{self._joins}.{self._failures}"


epochs = Count()
"""Of the data loader whose batches are trained with."""


class Progress:
    """Of one optimizer."""

    def __init__(self) -> None:
        self.steps = Count()

    def check(self, outcome: ballot.Outcome, ranks: list[int] | None) -> None:
        """Compare with what other ranks have told. Ranks in different epochs are only warned of, by rank 0.

        Raises:
            HorovodInternalError: The round has no right result, or ranks are in different steps. Programs may go on
                from there, so steps are counted anew.
        """
        try:
            ballot.check(outcome, self.steps.now())
        except Exception:
            self.steps.restart()
            raise
        if outcome.last_epoch != outcome.first_epoch and training.watched and not training.told_epochs:
            training.told_epochs = True
            training.tell("epochs", "", ranks or (), epochs=training.epochs, batches=training.epoch_batches)
