"""Gossip averaging, in which each rank averages its parameters with a few other ranks' after a step."""

from typing import Any

from horovod.common.process_sets import ProcessSet
from horovod.strategies.rules import GRAPHS, Graph, check_count, check_targets, pushed
from horovod.strategies.vector import Vector


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
        """Prepare for a local update. The first call broadcasts the parameters of the set's first rank."""
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
        """Adopt rank ``root``'s step count after a membership change. All ranks restart with weight 1."""
        self.steps = self.vector.hvd.broadcast_object(self.steps, root, "Gossip.sync", process_set)
        self.weight, self._mixed, self._started = 1.0, None, False
