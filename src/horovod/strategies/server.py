"""Update rules of a parameter server. Nothing here communicates."""

from collections.abc import Callable, Sequence
from typing import Any

from horovod.strategies.progress import Progress
from horovod.strategies.rules import elastic_move


class Store:
    """Slice of the parameters that a server holds, and its update rule. ``sliced`` has one for torch optimizers.

    Args:
        values: The slice as a flat array, which is changed in place.
        update: Function ``update(values, gradient, options)`` that updates ``values`` in place. ``options`` are numeric
            options of the worker's optimizer, such as the learning rate.
    """

    def __init__(self, values: Any, update: Callable[[Any, Any, Sequence[float]], None]) -> None:
        self.values = values
        self.update = update

    def state(self) -> Any:
        """Return the state of the update rule, for checkpoints."""
        return None


class Server:
    """Handler of the messages that a server receives. Does not communicate. Not thread-safe.

    Args:
        store: This server's slice.
        mode: With "sync", the server applies the average gradient of all workers. With "async", it applies each
            gradient when it arrives. With "easgd", it moves its parameters (the center) towards those of each worker,
            and the worker moves towards the center.
        workers: Ranks of the workers.
        staleness: Maximum number of steps by which a worker can be ahead of the slowest worker. None for no limit.
            Ignored in mode "sync".
        rate: Moving rate of mode "easgd".
        damping: True to divide each gradient by 1 + its staleness in mode "async".
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
        """Handle a worker's gradient, or in mode "easgd" its parameters."""
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
        """Return True if the reply can be sent to the worker."""
        return worker not in self._gradients and self.progress.may_continue(worker)

    def missing(self) -> list[int]:
        """Return the ranks of the workers for whose steps other workers wait."""
        if self.mode == "sync":
            return sorted(self.progress.active - self._gradients.keys())
        return self.progress.slowest()

    def reply(self, worker: int) -> Any:
        """Return the values to send to the worker: the parameters, or in mode "easgd" the change of its parameters."""
        self.progress.read(worker)
        return self._moves.pop(worker) if self.mode == "easgd" else self.store.values

    def leave(self, worker: int) -> None:
        """Record that a worker has finished, so that the other workers no longer wait for it."""
        self.progress.leave(worker)
        self._complete()

    def _complete(self) -> None:
        """Apply the average gradient if every active worker has sent one. Gradients are added in rank order."""
        if not self._gradients or not self.progress.active <= self._gradients.keys():
            return
        workers = sorted(self._gradients)
        total = self._gradients[workers[0]]
        for worker in workers[1:]:
            total = total + self._gradients[worker]
        self.store.update(self.store.values, total / len(workers), self._options)
        self.progress.updated_by_all(workers)
        self._gradients.clear()
