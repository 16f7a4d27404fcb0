"""Elastic state of a sharded optimizer, with replicas that survive the loss of a rank."""

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from horovod.common.elastic.agreement import signature
from horovod.common.frontends import TORCH as frontend
from horovod.common.process_sets import global_process_set
from horovod.torch.elastic.handlers import StateHandler
from horovod.torch.functions import allgather_object, broadcast_object
from horovod.torch.mpi_ops import rank, size
from horovod.torch.ops.alltoall import alltoall
from horovod.torch.ops.broadcast import broadcast_
from horovod.torch.sharded.optimizer import divide_again, is_sharded


class Part(NamedTuple):
    """Part of an optimizer's state that one rank owns.

    Attributes:
        ranks: Number of parts.
        groups: Options of the parameter groups, such as the learning rate. They are equal in all parts.
        segments: (index of the parameter, first element, end, entries) of each segment that the rank owns. An entry is
            (dtype, shape, device type) of a tensor in ``data``, or the value itself.
        data: Bytes of all tensors, in the order of ``segments``.
    """

    ranks: int
    groups: list[dict[str, Any]]
    segments: list[tuple[int, int, int, dict[str, Any]]]
    data: torch.Tensor


class ShardedStateHandler(StateHandler):
    """Handler for an ``hvd.ShardedOptimizer``. Its state survives the loss of ranks of which no two are neighbors.

    A commit saves each rank's part, and a copy of it on the next rank (on rank 0 for the last rank). After a failure or
    a change of the job's ranks, all ranks return to the last commit, and ``sync`` divides the parts among the current
    ranks.
    """

    def __init__(self, optimizer: Any) -> None:
        if optimizer._hvd_shards.process_set is not global_process_set:
            raise ValueError("process_set must be hvd.global_process_set for a ShardedOptimizer in an elastic state")
        super().__init__(optimizer)
        # Number of commits that the ranks have exchanged so far.
        self._number = 0
        # Job in which the last commit was made. A job ends when its ranks change.
        self._job: Any = None
        # Parts of the last commit stored on this rank, keyed by the rank that owns the part.
        self._parts: dict[int, Part] = {}
        # Parts of the commit in progress, kept until every rank has received its part.
        self._unconfirmed: dict[int, Part] = {}
        self.save()

    def save(self) -> None:
        """Save this rank's part. Only used before the first commit; afterwards, ``send`` and ``confirm`` save it."""
        if self._number == 0:
            self._job, self._parts = frontend.job, {rank(): self._pack()}

    def set_value(self, value: Any) -> None:
        raise ValueError("a ShardedOptimizer in an elastic state must not be replaced; create a new state")

    def send(self) -> None:
        """Begin a commit: save this rank's part, and send a copy to the next rank.

        All ranks must call this method together.

        The previous commit remains valid until ``confirm``, which ranks call once all of them have sent and received
        their parts.

        Raises:
            HorovodInternalError: If a rank was lost.
        """
        # Wait for pending gathers here, where an error is handled. While the model is copied, an error would end the
        # job.
        self.value.wait_for_parameters()
        me, ranks, mine = rank(), size(), self._pack()
        self._unconfirmed = {me: mine}
        if ranks > 1:
            previous = (me - 1) % ranks
            described = allgather_object(mine._replace(data=None), name="elastic.sharded.parts")
            splits = [mine.data.numel() if other == (me + 1) % ranks else 0 for other in range(ranks)]
            received, _ = alltoall(mine.data, splits, name="elastic.sharded.data")
            self._unconfirmed[previous] = described[previous]._replace(data=received)

    def confirm(self) -> None:
        """Complete the commit that ``send`` has begun."""
        self._job, self._parts, self._unconfirmed = frontend.job, self._unconfirmed, {}
        self._number += 1

    def restore(self) -> None:
        """Restore this rank's part of the last commit. If the ranks have changed, only ``sync`` can do this."""
        if self._parts:
            self._set_options(self._parts[min(self._parts)].groups)
        if self._job is frontend.job and rank() in self._parts:
            self._install([self._parts[rank()]])

    def reset(self) -> None:
        if self._number == 0 and self._job is not frontend.job:
            self._parts = {min(self._parts): self._pack()}
        divide_again(self.value)

    def sync(self, root: int = 0) -> None:
        """Roll back to the last commit of rank ``root``, and divide its state among the current ranks.

        All ranks get the options of ``root``. If no rank has any state yet, only the options are set.

        Raises:
            RuntimeError: If parts of the state are lost. Raised on every rank.
            HorovodInternalError: If a rank was lost.
        """
        self._set_options(broadcast_object(self._options(), root, name="elastic.sharded.options"))
        if self._job is frontend.job:
            self.save()
        commits = {self._number: self._parts, self._number + 1: self._unconfirmed}
        held = {n: (parts[min(parts)].ranks, list(parts)) for n, parts in commits.items() if parts}
        nbytes = sum(part.data.numel() for part in self._parts.values())
        reports = allgather_object((self._number, nbytes, held), name="elastic.sharded.commits")
        number = reports[root][0]
        if number == 0 and not any(nbytes for _, nbytes, _ in reports):
            return  # An optimizer has no state before its first step.
        ranks = next(found[number][0] for _, _, found in [reports[root], *reports] if number in found)
        holders: dict[int, int] = {}  # Maps each rank that owned a part to a rank that stores the part.
        for holder, (_, _, found) in enumerate(reports):
            divided, parts = found.get(number, (0, ()))
            for part in parts if divided == ranks else ():
                holders.setdefault(part, holder)
        if lost := sorted(set(range(ranks)) - set(holders)):
            raise RuntimeError(
                f"the optimizer's state of the former ranks {', '.join(map(str, lost))} is lost: the only copy, which "
                "exists from the first commit on, is on the next rank, which was lost as well; start the job again "
                "from a checkpoint (hvd.load_checkpoint)"
            )
        mine = commits.get(number, {})
        self._install(self._broadcast(mine.get(old), holders[old]) for old in range(ranks))
        self._parts, self._unconfirmed, self._number = mine, {}, number

    def describe(self) -> str:
        return f" ({signature((p.shape, p.dtype) for p in self.value._hvd_shards.parameters)})"

    def _broadcast(self, part: Part | None, root: int) -> Part:
        is_root = rank() == root
        found: Part = broadcast_object(
            part and (part._replace(data=None), part.data.numel()), root, name="elastic.sharded.part"
        )
        described, nbytes = found
        data = part.data if is_root and part else torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return described._replace(data=broadcast_(data, root, name="elastic.sharded.bytes"))

    def _pack(self) -> Part:
        segments, tensors = [], [torch.empty(0, dtype=torch.uint8, device="cpu")]
        for segment, tensor, _ in self.value._hvd_shards.owned:
            entries: dict[str, Any] = {}
            for key, value in self.value.state.get(tensor, {}).items():
                is_tensor = isinstance(value, torch.Tensor)
                entries[key] = (value.dtype, value.shape, value.device.type) if is_tensor else value
                if isinstance(value, torch.Tensor):
                    tensors.append(value.detach().cpu().contiguous().view(-1).view(torch.uint8))
            segments.append((segment.index, segment.start, segment.stop, entries))
        return Part(self.value._hvd_shards.ranks, self._options(), segments, torch.cat(tensors))

    def _options(self) -> list[dict[str, Any]]:
        """Return a copy of the options of the parameter groups. A learning rate can be a tensor."""
        groups = self.value.param_groups
        return copy.deepcopy([{k: v for k, v in group.items() if k != "params"} for group in groups])

    def _set_options(self, groups: list[dict[str, Any]]) -> None:
        for group, saved in zip(self.value.param_groups, copy.deepcopy(groups), strict=True):
            group.update(saved)

    def _install(self, parts: Iterable[Part]) -> None:
        """Replace this rank's part of the optimizer state with values from ``parts``, which may come from any rank."""
        self.value.state.clear()
        owned: dict[int, list[tuple[int, int, torch.Tensor]]] = {}
        for segment, tensor, _ in self.value._hvd_shards.owned:
            owned.setdefault(segment.index, []).append((segment.start, segment.stop, tensor))
        for part in parts:
            begin = 0
            for index, first, end, entries in part.segments:
                for key, value in entries.items():
                    on_cpu = True
                    if type(value) is tuple:
                        dtype, shape, device = value
                        nbytes, on_cpu = shape.numel() * dtype.itemsize, device == "cpu"
                        value, begin = part.data[begin : begin + nbytes].clone().view(dtype).view(shape), begin + nbytes
                    for start, stop, tensor in owned.get(index, ()):
                        low, high = max(first, start), min(end, stop)
                        state = self.value.state[tensor] if low < high else {}
                        if is_sharded(value, end - first) and low < high:
                            if key not in state:
                                state[key] = torch.zeros(stop - start, dtype=value.dtype, device=tensor.device)
                            state[key][low - start : high - start] = value[low - first : high - first]
                        elif isinstance(value, torch.Tensor):
                            state[key] = value.clone() if on_cpu else value.to(tensor.device, copy=True)
                        else:
                            state[key] = value
