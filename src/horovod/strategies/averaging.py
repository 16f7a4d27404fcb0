"""Strategies in which ranks average parameters without a server: gossip, local SGD and DiLoCo.

With gossip, each rank averages its parameters with a few other ranks' after a step. With local SGD and DiLoCo, ranks
train independently for a round, then update shared parameters together.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from horovod.common.process_sets import ProcessSet
from horovod.strategies.rules import (
    GRAPHS,
    Graph,
    OuterSGD,
    Schedule,
    Vector,
    blend,
    check_count,
    check_targets,
    pushed,
)


class GossipRounds:
    """State of gossip averaging on one rank, optionally with push-sum (Assran et al. 2019).

    Each round is one alltoall, in which a rank sends data only to its targets, so no communication graph can deadlock.

    Args:
        vector: The trained arrays.
        graph: "exponential", "ring", "pairs", or a function ``graph(size, round)`` that returns a list of target ranks
            for each rank. The function must return the same lists on all ranks.
        push_sum: True to send a weight with the parameters, which graphs require if ranks receive unequal shares.
        every: Number of steps between two rounds.
        average_every: Number of rounds between exact averages over all ranks (Gossip-PGA, Chen et al. 2021), or 0 for
            no exact averages.
        wire: Format on the network: None or "fp16".
        process_set: Ranks that take part.

    Raises:
        ValueError: If an argument is invalid.

    Attributes:
        steps: Number of steps taken.
        weight: Push-sum weight of this rank. It stays 1 with the built-in graphs.
        bytes_sent: Bytes that this rank has sent to its targets.
    """

    name = "Gossip"
    in_sync = False
    """False, because the parameters of the ranks differ after every step."""

    def __init__(
        self,
        vector: Vector,
        graph: str | Graph,
        push_sum: bool,
        every: int,
        average_every: int,
        wire: str | None,
        process_set: ProcessSet,
    ) -> None:
        if not callable(graph) and graph not in GRAPHS:
            raise ValueError(f"graph must be a function or one of {list(GRAPHS)}, got {graph!r}")
        if wire not in (None, "fp16"):
            raise ValueError(f"wire must be None or 'fp16', got {wire!r}")
        self.every = check_count("every", every, 1)
        self.average_every = check_count("average_every", average_every, 0)
        self.graph: Graph = graph if callable(graph) else GRAPHS[graph]
        self.vector, self.push_sum, self.wire, self.process_set = vector, push_sum, wire, process_set
        self.steps = 0
        self.weight = 1.0
        self.bytes_sent = 0
        self._started = False
        self._mixed: Any = None
        """Parameters after the last round. None while ``weight`` is 1."""

    def before_step(self) -> None:
        """Prepare for a local update. The first call broadcasts the parameters of the process set's first rank."""
        if not self._started:
            values = self.vector.read()
            root = self.process_set.ranks[0] if self.process_set.ranks else 0
            self.vector.hvd.broadcast_(values, root, name="Gossip.start", process_set=self.process_set)
            self.vector.write(values)
            self._started = True

    def after_step(self) -> None:
        """Count a local update, and run a round if it is due.

        Raises:
            ValueError: If the graph's targets are invalid.
            HorovodInternalError: If a rank was lost.
        """
        self.steps += 1
        number, rest = divmod(self.steps, self.every)
        if rest:
            return
        total, weight = self._weighted()
        if self.average_every and number % self.average_every == 0:
            total, weight = self._average(total, weight)
        else:
            total, weight = self._mix(total, weight, number - 1)
        self._take(total, weight)

    def _weighted(self) -> tuple[Any, float]:
        """Return this rank's push-sum value and weight. The parameters are the value divided by the weight.

        As in stochastic gradient push, the value includes the local updates since the last round.
        """
        values = self.vector.read()
        if self._mixed is None:
            return values, 1.0
        return self._mixed * self.weight + (values - self._mixed), self.weight

    def _mix(self, total: Any, weight: float, number: int) -> tuple[Any, float]:
        vector, size, me = self.vector, self.process_set.size() or 1, self.process_set.rank() or 0
        targets = check_targets(self.graph(size, number), size, self.push_sum)[me]
        whole = self._pack(total, weight)
        kept = pushed(whole, len(targets))
        sent = vector.half(kept) if self.wire else kept
        if self.wire:  # keep the rounding error on this rank, so that the sum over all ranks is preserved
            kept = whole - len(targets) * vector.full(sent)
        self.bytes_sent += len(targets) * sent.nbytes
        splits = [int(rank in targets) for rank in range(size)]
        rows = vector.rows(sent, len(targets))
        received, _ = vector.hvd.alltoall(rows, splits, name="Gossip.mix", process_set=self.process_set)
        for row in received:
            kept += vector.full(row)
        return self._unpack(kept)

    def _average(self, total: Any, weight: float) -> tuple[Any, float]:
        whole = self._pack(total, weight)
        whole = self.vector.hvd.allreduce(whole, name="Gossip.average", process_set=self.process_set)
        total, weight = self._unpack(whole)
        return total / weight, 1.0

    def _pack(self, total: Any, weight: float) -> Any:
        whole = self.vector.zeros(self.vector.total + self.push_sum)
        whole[: self.vector.total] = total
        if self.push_sum:
            whole[-1] = weight
        return whole

    def _unpack(self, whole: Any) -> tuple[Any, float]:
        return whole[: self.vector.total], float(whole[-1]) if self.push_sum else 1.0

    def _take(self, total: Any, weight: float) -> None:
        values = total if weight == 1.0 else total / weight
        self.vector.write(values)
        self.weight, self._mixed = weight, None if weight == 1.0 else values

    # The methods below support checkpoints, comparisons between ranks, and elastic jobs.

    def common(self) -> dict[str, Any]:
        """Return the state that must be equal on all ranks, for comparison."""
        return {"steps": self.steps}

    def state_dict(self) -> dict[str, Any]:
        """Return the state without copying it: steps, push-sum weight, and the parameters after the last round."""
        return {"steps": self.steps, "weight": self.weight, "mixed": self._mixed, "started": self._started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by ``state_dict``."""
        self.steps, self.weight, self._started = state["steps"], state["weight"], state["started"]
        self._mixed = None if state["mixed"] is None else self.vector.full(state["mixed"])

    def sync(self, root: int, process_set: ProcessSet) -> None:
        """Adopt rank ``root``'s step count and set the push-sum weight to 1, on all ranks after a membership change."""
        self.steps = self.vector.hvd.broadcast_object(self.steps, root, "Gossip.sync", process_set)
        self.weight, self._mixed, self._started = 1.0, None, False


WIRES = {None: "none", "fp16": "wire_fp16", "bf16": "wire_bf16", "int8": "wire_int8"}
"""Name of the compressor in ``Compression`` for each value of ``wire``."""


class Rounds:
    """State of local SGD or DiLoCo on one rank.

    The shared parameters are equal on all ranks. They start as the parameters of the process set's first rank.

    Args:
        vector: The trained arrays.
        outer: Optimizer that updates the shared parameters.
        schedule: Schedule that determines the steps after which fragments are exchanged.
        wire: Format on the network: None, "fp16", "bf16" or "int8".
        process_set: Ranks that take part.
        name: Prefix of the operations' names, such as "DiLoCo".
        mixing: Weight of a rank's own parameters when they are mixed with the shared parameters, in [0, 1).

    Raises:
        ValueError: If an argument is invalid.

    Attributes:
        steps: Number of steps taken.
        bytes_sent: Bytes of all changes that were reduced so far, before compression.
    """

    def __init__(
        self,
        vector: Vector,
        outer: OuterSGD,
        schedule: Schedule,
        wire: str | None,
        process_set: ProcessSet,
        name: str,
        mixing: float = 0.0,
    ) -> None:
        if not isinstance(outer, OuterSGD):
            raise ValueError(f"outer must be a horovod.strategies.OuterSGD, got {outer!r}")
        if wire not in WIRES:
            raise ValueError(f"wire must be one of {list(WIRES)}, got {wire!r}")
        if wire is not None and vector.dtype != "float32":
            raise ValueError(f"wire must be None for {vector.dtype} parameters, got {wire!r}")
        if not 0 <= mixing < 1:
            raise ValueError(f"mixing must be at least 0 and below 1, got {mixing!r}")
        self.vector, self.outer, self.schedule, self.mixing = vector, outer, schedule, mixing
        self.process_set, self.name = process_set, name
        self.steps = 0
        self.bytes_sent = 0
        self._compression = getattr(vector.hvd.Compression, WIRES[wire])
        self._ranges = schedule.ranges(vector.total)
        self._shared: Any = None
        self._velocity: Any = None
        self._pending: list[tuple[int, Any]] = []
        """Fragments in flight, each with the average change of the parameters, or with a Future of it."""
        self._thread: ThreadPoolExecutor | None = None

    def before_step(self) -> None:
        """Prepare for a local update. The first call broadcasts the parameters of the process set's first rank."""
        if self._shared is None:
            shared = self.vector.read()
            root = self._first_rank()
            self.vector.hvd.broadcast_(shared, root, name=f"{self.name}.start", process_set=self.process_set)
            self.vector.write(shared)
            self._set_shared(shared)

    def after_step(self) -> None:
        """Count a local update, and exchange the fragments that are due.

        Raises:
            HorovodInternalError: If a rank was lost.
        """
        self.steps += 1
        overlap = self.schedule.overlap
        if self._pending and self.schedule.due(self.steps - overlap):
            self._finish()
        for fragment in self.schedule.due(self.steps):
            self._send(fragment)
        if not overlap or self.steps <= self.schedule.synchronous_steps:
            self._finish()

    @property
    def in_sync(self) -> bool:
        """True if all ranks currently have equal parameters.

        With fragments or overlap, it is False after the first step.
        """
        return self._shared is None or (
            self.schedule.fragments == 1
            and not self.schedule.overlap
            and bool(self.steps == 0 or self.schedule.due(self.steps))
        )

    def _send(self, fragment: int) -> None:
        start, stop = self._ranges[fragment]
        change = self._shared[start:stop] - self.vector.read(start, stop)
        self.bytes_sent += change.nbytes
        if self.schedule.overlap:
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix=f"horovod-{self.name}")
            self._pending.append((fragment, self._thread.submit(self._average, fragment, change)))
        else:
            self._pending.append((fragment, self._average(fragment, change)))

    def _average(self, fragment: int, change: Any) -> Any:
        name = f"{self.name}.average.{fragment}"
        return self.vector.hvd.allreduce(change, name=name, compression=self._compression, process_set=self.process_set)

    def _finish(self) -> None:
        """Apply the pending changes to the shared parameters, and copy the result to the arrays that are trained."""
        self._arrive()
        for fragment, change in self._pending:
            start, stop = self._ranges[fragment]
            shared = self._shared[start:stop]
            self.outer.update(shared, change, None if self._velocity is None else self._velocity[start:stop])
            local = self.vector.read(start, stop) if self.mixing else None
            self.vector.write(blend(shared, local, self.mixing), start)
        self._pending.clear()

    def _arrive(self) -> None:
        """Wait until the ranks have exchanged the pending changes, without applying them."""
        self._pending = [(f, c.result() if isinstance(c, Future) else c) for f, c in self._pending]

    def _set_shared(self, shared: Any) -> None:
        self._shared = shared
        self._velocity = self.vector.zeros(self.vector.total) if self.outer.momentum else None

    def _first_rank(self) -> int:
        return self.process_set.ranks[0] if self.process_set.ranks else 0

    # The methods below support checkpoints, comparisons between ranks, and elastic jobs.

    def common(self) -> dict[str, Any]:
        """Return the state that must be equal on all ranks, for comparison."""
        return {"steps": self.steps, "shared": self._shared, "velocity": self._velocity}

    def state_dict(self) -> dict[str, Any]:
        """Return the shared parameters, outer momentum and position in the round, without copies.

        To resume, a rank needs this state, its own parameters, and the state of its inner optimizer.
        """
        self._arrive()
        pending = [[fragment, change] for fragment, change in self._pending]
        return {"steps": self.steps, "shared": self._shared, "velocity": self._velocity, "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by ``state_dict``.

        Raises:
            ValueError: If the state has a different number of parameters.
        """
        shared, velocity = state["shared"], state["velocity"]
        if shared is not None and len(shared) != self.vector.total:
            raise ValueError(
                f"{self.name}: the state must have {self.vector.total} shared parameters, got {len(shared)}"
            )
        self._arrive()
        self.steps = state["steps"]
        self._shared = None
        if shared is not None:
            self._set_shared(self.vector.full(shared))
            if velocity is not None and self._velocity is not None:
                self._velocity = self.vector.full(velocity)
        self._pending = [(fragment, self.vector.full(change)) for fragment, change in state["pending"]]

    def sync(self, root: int, process_set: ProcessSet) -> None:
        """Broadcast the shared parameters and the outer momentum from rank ``root``, and restart the round.

        Elastic jobs call this after a membership change. New ranks receive the shared state. All other ranks repeat
        the local updates of the unfinished round. Averages are taken over the current ranks.
        """
        hvd = self.vector.hvd
        self._pending.clear()
        mine = self.steps, self._shared is not None
        self.steps, started = hvd.broadcast_object(mine, root, f"{self.name}.sync", process_set)
        if not started:
            self._shared = None
            return
        self.steps = self.schedule.begin_of_round(self.steps)
        if self._shared is None:
            self._set_shared(self.vector.zeros(self.vector.total))
        for name, values in (("shared", self._shared), ("velocity", self._velocity)):
            if values is not None:
                hvd.broadcast_(values, root, name=f"{self.name}.sync.{name}", process_set=process_set)
        self.vector.write(self._shared)
