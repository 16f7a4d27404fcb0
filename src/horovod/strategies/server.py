"""Update rules of a parameter server. Nothing here communicates."""

from collections.abc import Callable, Sequence
from typing import Any

from horovod.strategies.progress import Progress
from horovod.strategies.rules import elastic_move


class Store:
    """Slice of the parameters that a server holds, and how it changes. ``tensors`` has one with torch's optimizers.

    Args:
        values: The slice; changed in place.
        update: Function of (values, gradient, options) that updates the values in place. ``options`` are numbers of
            the worker's optimizer, such as its learning rate.
    """

    def __init__(self, values: Any, update: Callable[[Any, Any, Sequence[float]], None]) -> None:
        self.values = values
        self.update = update

    def state(self) -> Any:
        """Return the state of the update rule, for checkpoints."""
        return None


class Server:
    """Handler of a server's messages: pure, apart from the store that it changes. Not thread-safe.

    Args:
        store: This server's slice.
        mode: "sync": update with the average gradient of all workers. "async": update with each gradient when it
            arrives. "easgd": move the center towards each worker's parameters, and these towards the center.
        workers: Ranks of the workers.
        staleness: Steps by which a worker may be ahead of the slowest one; None for no bound. Ignored in mode "sync".
        rate: Moving rate of mode "easgd".
        damping: Divide an asynchronous gradient by 1 + its staleness.
    """

    def __init__(
        self, store: Store, mode: str, workers: Sequence[int], staleness: int | None, rate: float, damping: bool
    ) -> None:
        self.store, self.mode, self.rate, self.damping = store, mode, rate, damping
        self.progress = Progress(workers, 0 if mode == "sync" else staleness)
        self._gradients: dict[int, Any] = {}
        self._options: Sequence[float] = ()
        self._moves: dict[int, Any] = {}

    def receive(self, worker: int, values: Any, options: Sequence[float]) -> None:
        """Take a worker's gradient, or in mode "easgd" its parameters."""
        if self.mode == "sync":
            self._gradients[worker] = values
            self._options = options
            self._complete()
        elif self.mode == "easgd":
            move = elastic_move(values, self.store.values, self.rate)
            self.store.values += move
            self._moves[worker] = move
            self.progress.updated(worker)
        else:
            stale = self.progress.updated(worker)
            self.store.update(self.store.values, values / (1 + stale) if self.damping else values, options)

    def ready(self, worker: int) -> bool:
        """Return True if the worker may get its reply."""
        return worker not in self._gradients and self.progress.may_continue(worker)

    def missing(self) -> list[int]:
        """Return the workers whose steps the waiting ones need."""
        if self.mode == "sync":
            return sorted(self.progress.active - self._gradients.keys())
        return self.progress.slowest()

    def reply(self, worker: int) -> Any:
        """Return the values for the worker: the parameters, or in mode "easgd" its move."""
        self.progress.read(worker)
        return self._moves.pop(worker) if self.mode == "easgd" else self.store.values

    def leave(self, worker: int) -> None:
        """Take note that a worker is done; the others no longer wait for it."""
        self.progress.leave(worker)
        self._complete()

    def _complete(self) -> None:
        """Update with the average, added in the order of ranks, when every active worker has sent its gradient."""
        if not self._gradients or not self.progress.active <= self._gradients.keys():
            return
        workers = sorted(self._gradients)
        total = self._gradients[workers[0]]
        for worker in workers[1:]:
            total = total + self._gradients[worker]
        self.store.update(self.store.values, total / len(workers), self._options)
        self.progress.updated_by_all(workers)
        self._gradients.clear()
