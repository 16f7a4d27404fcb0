"""Parameter server: some ranks store the parameters, and the others train and exchange values with the servers."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.process_sets import ProcessSet, add_process_set, by_id, find, global_process_set
from horovod.strategies.rules import Progress, Vector, check_count, elastic_move, slices


class Store:
    """Slice of the parameters that a server stores, and its update rule.

    For torch optimizers, see ``tensors.SlicedOptimizer``.

    Args:
        values: The slice as a flat array, updated in place.
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
    """Server-side message handling. It does no communication itself, and is not thread-safe.

    Args:
        store: This server's slice.
        mode: In "sync" mode, the server applies the average gradient of all workers. In "async" mode, it applies each
            gradient when it arrives. In "easgd" mode, the server moves its parameters (the center) towards those of
            each worker, and the worker moves its parameters towards the center.
        workers: Ranks of the workers.
        staleness: Maximum number of steps by which a worker can be ahead of the slowest worker, or None for no limit.
            Ignored in "sync" mode.
        rate: Moving rate in "easgd" mode.
        damping: True to divide each gradient by 1 + its staleness in "async" mode.
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
        """Handle a gradient (or, in "easgd" mode, parameters) from a worker."""
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
        """Return True if the server is ready to send the worker its reply."""
        return worker not in self._gradients and self.progress.may_continue(worker)

    def missing(self) -> list[int]:
        """Return the ranks of the workers that the other workers are waiting for."""
        if self.mode == "sync":
            return sorted(self.progress.active - self._gradients.keys())
        return self.progress.slowest()

    def reply(self, worker: int) -> Any:
        """Return the values to send to a worker.

        These are the parameters or, in "easgd" mode, the change that the worker subtracts from its own parameters.
        """
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


MODES = ("sync", "async", "easgd")
_STEP, _DONE, _STATE = 0.0, 1.0, 2.0
"""First number of a worker's message, which determines the kind of the request."""


class Roles:
    """Assignment of ranks to workers and servers. The servers are the last ranks, so rank 0 is a worker.

    Args:
        size: Number of ranks.
        servers: Number of servers, at least 1.

    Raises:
        ValueError: If no rank is left to train.
    """

    def __init__(self, size: int, servers: int) -> None:
        if servers >= size:
            raise ValueError(
                f"servers must be below the number of ranks ({size}), got {servers}; start at least {servers + 1} ranks"
            )
        self.workers = list(range(size - servers))
        self.servers = list(range(size - servers, size))


class Serving:
    """One rank's part in a parameter server job, as a worker or a server.

    Each server-worker pair has its own process set, in which messages are sent as broadcasts. A server runs one
    thread per worker.

    Args:
        vector: The trained arrays.
        make_store: Function ``make_store(start, stop)`` that creates a server's store for these elements.
        servers: Number of servers.
        mode, staleness, rate, damping: See ``Server``. If the rate is None, it is 0.9 / number of workers.
        every: Number of steps between two exchanges. Must be 1 except in "easgd" mode.
        wire: Format of the values that workers send, None or "fp16". Replies are not rounded.
        options: Function that returns a worker's numbers for the servers' update rule, such as the learning rate.
        timeout: Seconds that a worker can wait for slower workers before the training fails.

    Raises:
        ValueError: If an argument is invalid.
    """

    name = "ParameterServer"

    def __init__(
        self,
        vector: Vector,
        make_store: Callable[[int, int], Store],
        servers: int,
        mode: str,
        staleness: int | None,
        every: int,
        rate: float | None,
        damping: bool,
        wire: str | None,
        timeout: float,
        options: Callable[[], list[float]] = list,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {list(MODES)}, got {mode!r}")
        if wire not in (None, "fp16"):
            raise ValueError(f"wire must be None or 'fp16', got {wire!r}")
        if rate is not None and not 0 < rate < 1:
            raise ValueError(f"rate must be above 0 and below 1, got {rate!r}")
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout!r}")
        self.servers = check_count("servers", servers, 1)
        self.every = check_count("every", every, 1)
        if self.every > 1 and mode != "easgd":
            raise ValueError(f"every must be 1 in mode {mode!r}, got {every}")
        self.staleness = None if staleness is None else check_count("staleness", staleness, 0)
        self.vector, self.mode, self.rate, self.damping = vector, mode, rate, damping
        self.half, self.timeout = wire is not None, timeout
        self.steps = 0
        self.bytes_sent = 0
        self.histogram: Counter[int] = Counter()
        """Number of updates by staleness. Complete on all ranks after ``finish``."""
        self._make_store, self._options = make_store, options
        self._started = self._finished = False
        self._pairs: dict[tuple[int, int], ProcessSet] = {}

    @property
    def in_sync(self) -> bool:
        """True if all ranks have the same parameters."""
        return not self._started or self._finished

    @property
    def serving(self) -> bool:
        """True until the training has finished. Until then, no collective can include both workers and servers."""
        return not self._finished

    def roles(self) -> Roles:
        """Return which of the current ranks are workers and servers."""
        return Roles(self.vector.hvd.size(), self.servers)

    def start(self) -> None:
        """Broadcast the parameters from rank 0 and connect the ranks. All ranks must call this.

        Repeated calls have no effect.
        """
        if self._started:
            return
        hvd, self._roles = self.vector.hvd, self.roles()
        self._ranges = slices(self.vector.total, self.servers)
        sets = [((s, w), sorted((s, w))) for s in self._roles.servers for w in self._roles.workers]
        all_ranks = hvd.size() == 2
        self._pairs = {pair: global_process_set if all_ranks else _pair(ranks) for pair, ranks in sets}
        values = self.vector.read()
        hvd.broadcast_(values, 0, name="ParameterServer.start")
        self.vector.write(values)
        self._width = 1 + len(self._options())
        self._started = True

    # The methods below run on workers.

    def exchange(self, values: Any) -> Any:
        """Send a worker's values to the servers, and return the servers' replies.

        Args:
            values: Function ``values(start, stop)`` that returns the gradient or the parameters of these elements.

        Returns:
            The replies as one vector.

        Raises:
            HorovodInternalError: If a rank was lost, or a server has failed.
        """
        vector, me = self.vector, self.vector.hvd.rank()
        header = [_STEP, *self._options()]
        pushes = []
        for server, (start, stop) in zip(self._roles.servers, self._ranges, strict=True):
            part = values(start, stop)
            message = vector.message(header, vector.half(part) if self.half else part)
            self.bytes_sent += message.nbytes
            pushes.append((server, message, me))
        self._broadcast(pushes, "push")
        replies = vector.zeros(vector.total)
        pulls = [
            (server, replies[start:stop], server)
            for server, (start, stop) in zip(self._roles.servers, self._ranges, strict=True)
        ]
        self._broadcast(pulls, "pull")
        return replies

    def step_with(self, gradients: Sequence[Any]) -> None:
        """Send this worker's gradients to the servers, and overwrite its parameters with the values they return."""
        gather = self.vector.gather
        self.vector.write(self.exchange(lambda start, stop: gather(gradients, start, stop)))
        self.steps += 1

    def step_apart(self) -> None:
        """Count a local step in "easgd" mode, and exchange parameters after every ``every`` steps."""
        self.steps += 1
        if self.steps % self.every == 0:
            self.vector.write(self.vector.read() - self.exchange(self.vector.read))

    def _broadcast(self, messages: Sequence[tuple[int, Any, int]], what: str) -> None:
        """Exchange messages with all servers concurrently. Each message is (server, buffer, root)."""
        hvd, me = self.vector.hvd, self.vector.hvd.rank()
        started = [
            hvd.broadcast_async_(memory, root, name=_name(what, server, me), process_set=self._pairs[server, me])
            for server, memory, root in messages
            if len(memory)
        ]
        for handle in started:
            hvd.synchronize(handle)

    def _order(self, kind: float) -> None:
        """Send all servers a request without values. The message contains zeros, which the servers ignore."""
        vector, me = self.vector, self.vector.hvd.rank()
        messages = []
        for server, (start, stop) in zip(self._roles.servers, self._ranges, strict=True):
            values = vector.zeros(stop - start)
            header = [kind] + [0.0] * (self._width - 1)
            messages.append((server, vector.message(header, vector.half(values) if self.half else values), me))
        self._broadcast(messages, "push")

    def fetch(self) -> list[Any]:
        """Request a snapshot from each server, and return all of them. Workers can call this during training."""
        self._order(_STATE)
        me = self.vector.hvd.rank()
        return [
            self.vector.hvd.broadcast_object(None, server, _name("state", server, me), self._pairs[server, me])
            for server in self._roles.servers
        ]

    def finish(self) -> list[Any]:
        """End the training of this worker and wait for all other workers.

        All ranks get the final parameters.

        Returns:
            Snapshots of the servers.

        Raises:
            HorovodInternalError: If a rank was lost.
        """
        self.start()
        self._order(_DONE)
        return self._drained(None)

    def _drained(self, own: Any) -> list[Any]:
        """Exchange the final state of the training. All ranks call this after the last update."""
        hvd, found = self.vector.hvd, []
        for server, (start, _) in zip(self._roles.servers, self._ranges, strict=True):
            snapshot = hvd.broadcast_object(own, server, f"ParameterServer.final.{server}")
            found.append(snapshot)
            self.vector.write(snapshot["values"], start)
            self.histogram.update(snapshot["histogram"])
        self._finished, self._started = True, False
        return found

    # The methods below run on servers.

    def serve(self) -> list[Any]:
        """Run this server until all workers are done.

        Returns:
            Snapshots of the servers.

        Raises:
            TimeoutError: If a worker waited longer than ``timeout`` for slower workers.
            HorovodInternalError: If a rank was lost.
        """
        self.start()
        me = self.vector.hvd.rank()
        start, stop = self._ranges[self._roles.servers.index(me)]
        rate = self.rate if self.rate is not None else 0.9 / len(self._roles.workers)
        store = self._make_store(start, stop)
        server = Server(store, self.mode, self._roles.workers, self.staleness, rate, self.damping)
        loop = _Loop(self, server, me)
        loop.run(self._roles.workers)
        return self._drained(loop.snapshot())

    def common(self) -> dict[str, Any]:
        """Return the state that must be equal on all ranks, for comparison."""
        return {"mode": self.mode}

    def sync(self, root: int, process_set: ProcessSet) -> None:
        """Prepare for a membership change. The next step reassigns roles and reconnects the ranks."""
        self._started = self._finished = False
        self.steps = self.vector.hvd.broadcast_object(self.steps, root, "ParameterServer.sync", process_set)


class _Loop:
    """A server's threads, one per worker. A single lock protects the server's state."""

    def __init__(self, serving: Serving, server: Server, me: int) -> None:
        self._serving, self._server, self._me = serving, server, me
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._ended = 0

    def run(self, workers: Sequence[int]) -> None:
        """Serve the given workers until they are done, or raise the first failure."""
        for worker in workers:
            name = f"horovod-server-{worker}"
            threading.Thread(target=self._serve, args=(worker,), name=name, daemon=True).start()
        with self._changed:
            while self._failure is None and self._ended < len(workers):
                self._changed.wait(1.0)  # A worker's thread notifies this condition when it ends, even after a failure.
        if self._failure is not None:
            raise self._failure

    def snapshot(self) -> dict[str, Any]:
        """Return the server's values, the state of its update rule, and its histogram of staleness."""
        server = self._server
        return {
            "values": server.store.values,
            "state": server.store.state(),
            "histogram": dict(server.progress.histogram),
        }

    def _serve(self, worker: int) -> None:
        try:
            while self._reply(worker):
                pass
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
        with self._changed:
            self._ended += 1
            self._changed.notify_all()

    def _reply(self, worker: int) -> bool:
        """Receive a message from a worker and answer it. Return False if the worker is done."""
        serving, server, me = self._serving, self._server, self._me
        vector, pair, size = serving.vector, serving._pairs[me, worker], len(server.store.values)
        message = vector.empty_message(serving._width, size, serving.half)
        vector.hvd.broadcast_(message, worker, name=_name("push", me, worker), process_set=pair)
        (kind, *options), values = vector.parse(message, serving._width, serving.half)
        if kind == _STATE:
            with self._changed:
                snapshot = self.snapshot()
                vector.hvd.broadcast_object(snapshot, me, _name("state", me, worker), pair)
            return True
        with self._changed:
            if kind == _DONE:
                server.leave(worker)
                self._changed.notify_all()
                return False
            server.receive(worker, values, options)
            self._changed.notify_all()
            self._wait(worker)
            reply = server.reply(worker) + 0  # copy the reply, because other workers' updates change the values
        if size:
            vector.hvd.broadcast_(reply, me, name=_name("pull", me, worker), process_set=pair)
        return True

    def _wait(self, worker: int) -> None:
        deadline = time.monotonic() + self._serving.timeout
        while not self._server.ready(worker):
            if self._failure is not None:
                raise self._failure
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"ParameterServer: rank {worker} has waited {self._serving.timeout:g} s for a step of rank "
                    f"{self._server.missing()}; increase timeout if these ranks are only slow"
                )
            self._changed.wait(left)


def _name(what: str, server: int, worker: int) -> str:
    return f"ParameterServer.{what}.{server}-{worker}"


def _pair(ranks: Sequence[int]) -> ProcessSet:
    """Return the process set of two ranks, registering it if necessary.

    All ranks must make these calls in the same order.
    """
    number = find(list(ranks))
    found = by_id(number) if number is not None else None
    return found if found is not None else add_process_set(list(ranks))
