"""``hvd`` process group, which translates c10d calls into engine operations.

The class defines each method under two names: PyTorch 2.13 calls names such as ``all_gather_single``, and earlier
versions call names such as ``_allgather_base``. Calls from C++ can reach only some of the methods
(docs/pytorch/torch-distributed.md).
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import ProcessGroup

from horovod._core import KIND_ALLGATHER, KIND_ALLREDUCE, KIND_ALLTOALL, KIND_BROADCAST, KIND_REDUCESCATTER
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import state
from horovod.torch.distributed import engine, members
from horovod.torch.distributed.engine import Flat, submit
from horovod.torch.distributed.members import Message, Reduction, fold, reduction_of
from horovod.torch.distributed.work import HorovodWork
from horovod.torch.ops.tensors import output_of

Tensors = Sequence[torch.Tensor]


class HorovodProcessGroup(ProcessGroup):
    """Process group whose members are ranks of a Horovod job.

    Attributes:
        label: Name and ranks of the group, for error messages.
        seconds: Timeout of operations, in seconds.
    """

    def __init__(self, options: Any, ranks: list[int], label: str, number: int, frontend: int, world: bool) -> None:
        """Create the process group from its store, rank and size.

        Args:
            options: c10d's options.
            ranks: Ranks in the job.
            label: Name and ranks of the group, for error messages.
            number: Id of the process set of these ranks.
            frontend: Frontend number, which separates the operations of this group from those of other groups.
            world: True for the default group. Its shutdown also shuts down Horovod in this process.
        """
        super().__init__(options.group_rank, options.group_size)
        self.label, self.seconds = label, options.timeout.total_seconds()
        self._store, self._group_id = options.store, str(options.group_id)
        self._name, self._description = self._group_id, "undefined"
        self._own_rank, self._own_size, self._ranks = options.group_rank, options.group_size, ranks
        self._number, self._frontend, self._world = number, frontend, world
        self._members = members.current()
        self._submit, self._run = self._members.submitters(frontend)
        self._sequence = 0
        self._messages: dict[tuple[int, int, int], int] = {}
        self._coalesced: list[HorovodWork] | None = None

    # Identity

    def getBackendName(self) -> str:
        return "hvd"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def __repr__(self) -> str:
        return f"HorovodProcessGroup({self.label})"

    def set_timeout(self, timeout: timedelta) -> None:
        self.seconds = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def shutdown(self) -> None:
        """Shut down the group, and Horovod if this is the default group.

        ``destroy_process_group`` calls this method.
        """
        if self._world and state.engine is self._members.engine:
            engine.basics.shutdown()
            if state.engine is None:
                members.forget()

    def abort(self) -> None:
        self.shutdown()

    # Collectives

    def broadcast(self, tensors: Tensors, opts: Any) -> HorovodWork:
        tensor = self._one("broadcast", tensors)
        values = self._flat("broadcast", tensor)
        root = self._ranks[opts.rootRank]
        work = self._start("broadcast", KIND_BROADCAST, values, values, opts, root=root, shape=values.shape)
        return self._work("broadcast", [work], [tensor], values.write, values)

    def allreduce(self, tensors: Tensors, opts: Any) -> HorovodWork:
        return self._allreduce("all_reduce", [self._one("all_reduce", tensors)], opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> HorovodWork:
        return self._allreduce("all_reduce_coalesced", list(tensors), opts)

    def _allreduce(self, call: str, tensors: list[torch.Tensor], opts: Any) -> HorovodWork:
        works, finishes, keep = [], [], []
        for tensor in tensors:
            reduction = self._reduction(call, opts, tensor)
            source, target = self._input(call, tensor, reduction), self._flat(call, tensor)
            keep.append((source, target))
            if reduction.code is not None:
                given = self._arguments(reduction)
                works.append(self._start(call, KIND_ALLREDUCE, source, target, opts, shape=target.shape, **given))
                finishes.append(target.write)
            else:
                works.append(self._start(call, KIND_ALLGATHER, source, source, opts))
                finishes.append(self._folding(works[-1], reduction, target))
        return self._work(call, works, tensors, _all(finishes), keep)

    def reduce(self, tensors: Tensors, opts: Any) -> HorovodWork:
        tensor = self._one("reduce", tensors)
        if opts.rootRank == self._own_rank:
            return self._allreduce("reduce", [tensor], opts)
        # The engine cannot reduce to a single rank, so run an allreduce. Ranks other than the root keep their tensors
        # unchanged.
        work = self._allreduce("reduce", [tensor.detach().clone()], opts)
        return self._work("reduce", [work.as_operation()], [tensor])

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> HorovodWork:
        return self.allgather_coalesced(outputs, [self._one("all_gather", inputs)], opts, "all_gather")

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None, call: str = "all_gather_coalesced"
    ) -> HorovodWork:
        works, finishes, keep = [], [], []
        for parts, tensor in zip(outputs, inputs, strict=True):
            self._check(call, len(parts) == self._own_size, f"{self._own_size} output tensors", len(parts))
            source, targets = self._flat(call, tensor), [self._flat(call, part, copy=False) for part in parts]
            self._same_dtype(call, source, targets)
            works.append(self._start(call, KIND_ALLGATHER, source, source, opts))
            finishes.append(_distributing(works[-1], targets))
            keep.append((source, targets))
        return self._work(call, works, [part for parts in outputs for part in parts], _all(finishes), keep)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> HorovodWork:
        return self.all_gather_single_coalesced([output], [tensor], opts, "all_gather_single")

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, call: str = "all_gather_single_coalesced"
    ) -> HorovodWork:
        works, finishes, keep = [], [], []
        for output, tensor in zip(outputs, inputs, strict=True):
            source, target = self._flat(call, tensor), self._flat(call, output, copy=False)
            size = source.tensor.numel() * self._own_size
            self._check(call, target.tensor.numel() == size, f"an output of {size} elements", target.tensor.numel())
            self._same_dtype(call, source, [target])
            works.append(self._start(call, KIND_ALLGATHER, source, source, opts))
            finishes.append(_distributing(works[-1], [target], self._own_size))
            keep.append((source, target))
        return self._work(call, works, list(outputs), _all(finishes), keep)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> HorovodWork:
        call, tensor = "gather", self._one("gather", inputs)
        source = self._flat(call, tensor)
        splits = [0] * self._own_size
        splits[opts.rootRank] = source.tensor.numel()
        parts = list(outputs[0]) if outputs else []
        targets = [self._flat(call, part, copy=False) for part in parts]
        self._same_dtype(call, source, targets)
        work = self._start(call, KIND_ALLTOALL, source, source, opts, splits=splits)
        finish = _distributing(work, targets) if self._own_rank == opts.rootRank else None
        return self._work(call, [work], parts, finish, (source, targets))

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> HorovodWork:
        call, output = "scatter", self._one("scatter", outputs)
        target = self._flat(call, output, copy=False)
        if self._own_rank == opts.rootRank:
            self._check(call, len(inputs[0]) == self._own_size, f"{self._own_size} input tensors", len(inputs[0]))
            parts = [self._flat(call, part) for part in inputs[0]]
            self._same_dtype(call, target, parts)
            source, splits = Flat(torch.cat([part.tensor for part in parts])), [part.tensor.numel() for part in parts]
        else:
            source, splits = Flat(target.tensor[:0]), [0] * self._own_size
        source.code = target.code
        work = self._start(call, KIND_ALLTOALL, source, source, opts, splits=splits)
        return self._work(call, [work], [output], _distributing(work, [target], None), (source, target))

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> HorovodWork:
        call, output = "reduce_scatter", self._one("reduce_scatter", outputs)
        self._check(call, len(inputs[0]) == self._own_size, f"{self._own_size} input tensors", len(inputs[0]))
        return self._reduce_scatter(call, [output], [list(inputs[0])], opts)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> HorovodWork:
        return self._reduce_scatter("reduce_scatter_single", [output], [[tensor]], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HorovodWork:
        return self._reduce_scatter("reduce_scatter_single_coalesced", list(outputs), [[one] for one in inputs], opts)

    def _reduce_scatter(
        self, call: str, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> HorovodWork:
        works, finishes, keep = [], [], []
        for output, parts in zip(outputs, inputs, strict=True):
            reduction = self._reduction(call, opts, output, scatters=True)
            target = self._flat(call, output, copy=False)
            flats = [self._input(call, part, reduction) for part in parts]
            self._same_dtype(call, target, flats)
            source = flats[0] if len(flats) == 1 else Flat(torch.cat([flat.tensor for flat in flats]))
            size, total = target.tensor.numel(), source.tensor.numel()
            counts = [flat.tensor.numel() for flat in flats] if len(flats) > 1 else [size] * self._own_size
            fits = sum(counts) == total and counts[self._own_rank] == size
            self._check(call, fits, f"an output of {total // self._own_size} elements", size)
            if reduction.code is not None and len(set(counts)) == 1:
                given = self._arguments(reduction)
                works.append(self._start(call, KIND_REDUCESCATTER, source, target, opts, **given))
                finishes.append(target.write)
            else:
                works.append(self._start(call, KIND_ALLTOALL, source, source, opts, splits=counts))
                finishes.append(self._folding(works[-1], reduction, target))
            keep.append((source, target))
        return self._work(call, works, outputs, _all(finishes), keep)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> HorovodWork:
        call = "all_to_all_single"
        source, target = self._flat(call, tensor), self._flat(call, output, copy=False)
        self._same_dtype(call, source, [target])
        sends = self._counts(call, "input", source, tensor, input_splits)
        receives = self._counts(call, "output", target, output, output_splits)
        work = self._start(call, KIND_ALLTOALL, source, source, opts, splits=sends)
        finish = _distributing(work, [target], receives)
        return self._work(call, [work], [output], finish, (source, target))

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HorovodWork:
        call = "all_to_all"
        for what, tensors in (("output", outputs), ("input", inputs)):
            self._check(call, len(tensors) == self._own_size, f"{self._own_size} {what} tensors", len(tensors))
        parts, targets = (
            [self._flat(call, one) for one in inputs],
            [self._flat(call, one, copy=False) for one in outputs],
        )
        self._same_dtype(call, parts[0], [*parts, *targets])
        source, code = Flat(torch.cat([part.tensor for part in parts])), parts[0].code
        source.code = code
        work = self._start(call, KIND_ALLTOALL, source, source, opts, splits=[part.tensor.numel() for part in parts])
        return self._work(call, [work], list(outputs), _distributing(work, targets), (source, targets))

    def barrier(self, opts: Any = None) -> HorovodWork:
        self._begin("barrier")
        work = self._submitted("barrier", lambda: engine.submit_barrier(self._run, self._number))
        return self._work("barrier", [work], [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks of the group. On a timeout, the error names the missing ranks."""
        self._begin("monitored_barrier")
        key = f"monitored_barrier/{self._sequence}"
        self._store.set(f"{key}/{self._own_rank}", "")
        work = self._submitted("monitored_barrier", lambda: engine.submit_barrier(self._submit, self._number))
        seconds = timeout.total_seconds() if timeout is not None else self.seconds
        if not engine.wait(work, time.monotonic() + seconds):
            missing = [rank for rank in range(self._own_size) if not self._store.check([f"{key}/{rank}"])]
            why = f"ranks {missing} have not reached it within {seconds:g} s"
            raise engine.failure("monitored_barrier", self.label, why)

    # Messages

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> HorovodWork:
        if self._own_size > 2:
            self._store.add(f"sent/{self._own_rank}/{destination}/{tag}", 1)  # for recv_anysource
        return self._message("send", self._one("send", tensors), self._own_rank, destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> HorovodWork:
        return self._message("recv", self._one("recv", tensors), source, self._own_rank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> HorovodWork:
        """Receive a message from any rank that has sent one."""
        others = [rank for rank in range(self._own_size) if rank != self._own_rank]
        deadline, pause = time.monotonic() + self.seconds, 0.0005
        while len(others) > 1:
            for rank in others:
                known = self._messages.get((rank, self._own_rank, tag), 0)
                if self._store.add(f"sent/{rank}/{self._own_rank}/{tag}", 0) > known:
                    return self.recv(tensors, rank, tag)
            if time.monotonic() > deadline:
                why = f"no rank has sent a message with tag {tag} within {self.seconds:g} s"
                raise engine.failure("recv from any source", self.label, why)
            time.sleep(pause)
            pause = min(0.02, pause * 1.5)
        return self.recv(tensors, others[0], tag)

    def _message(self, call: str, tensor: torch.Tensor, source: int, destination: int, tag: int) -> HorovodWork:
        self._check(call, source != destination, "another rank than this one", source)
        self._begin(call)
        values = self._flat(call, tensor, copy=call == "send")
        key = (source, destination, tag)
        count = self._messages[key] = self._messages.get(key, 0) + 1
        upwards = source < destination
        submitter, _ = self._members.submitters(members.UPWARDS if upwards else members.DOWNWARDS)
        pair = sorted((self._ranks[source], self._ranks[destination]))
        # Submit the messages without names, so that the engine matches them by call order and skips negotiation for
        # repeated ones.
        name = "" if self._world and tag == 0 and self._frontend == members.FIRST else f"{self._group_id}.{tag}.{count}"
        there = self._submitted(call, lambda: self._members.set_of(pair))
        message = Message(there, submitter, values, self._ranks[source], name)
        finish = values.write if call == "recv" else None
        return self._work(call, [message], [tensor], finish, values, source if call == "recv" else -1)

    # Submit coalesced operations one by one, because the engine fuses them itself.

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> HorovodWork:
        works, self._coalesced = self._coalesced or [], None
        return HorovodWork("coalesced operations", self, [work.as_operation() for work in works], [])

    # Names under which earlier versions of PyTorch call the methods above.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Helpers

    def _start(self, call: str, kind: int, source: Flat, target: Flat, opts: Any, **options: Any) -> Any:
        self._begin(call)
        submitter = self._submit if getattr(opts, "asyncOp", True) else self._run
        return self._submitted(call, lambda: submit(submitter, kind, source, target, self._number, **options))

    def _begin(self, call: str) -> None:
        self._sequence += 1
        if state.engine is not self._members.engine:
            why = "this process was forked from a rank" if state.forked else "the Horovod job of the group has ended"
            raise engine.failure(call, self.label, why)

    def _submitted(self, call: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except (ValueError, HorovodInternalError) as error:
            raise engine.failure(call, self.label, error) from error

    def _work(
        self,
        call: str,
        works: list[Any],
        result: list[torch.Tensor],
        finish: Callable[[], None] | None = None,
        keep: Any = None,
        source: int = -1,
    ) -> HorovodWork:
        work = HorovodWork(call, self, works, result, finish, keep, source)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _check(self, call: str, holds: bool, accepted: str, value: object) -> None:
        if not holds:
            raise ValueError(f"{call} in process group {self.label}: must have {accepted}, got {value}")

    def _one(self, call: str, tensors: Tensors) -> torch.Tensor:
        self._check(call, len(tensors) == 1, "one tensor", len(tensors))
        return tensors[0]

    def _flat(self, call: str, tensor: torch.Tensor, copy: bool = True) -> Flat:
        try:
            return Flat(tensor, copy)
        except ValueError as error:
            raise ValueError(f"{call} in process group {self.label}: {error}") from None

    def _same_dtype(self, call: str, one: Flat, others: Sequence[Flat]) -> None:
        for other in others:
            if other.tensor.dtype != one.tensor.dtype:
                self._check(call, False, f"tensors of one dtype ({one.tensor.dtype})", other.tensor.dtype)

    def _reduction(self, call: str, opts: Any, tensor: torch.Tensor, scatters: bool = False) -> Reduction:
        try:
            return reduction_of(opts.reduceOp, tensor.dtype, scatters)
        except ValueError as error:
            raise ValueError(f"{call} in process group {self.label}: {error}") from None

    def _input(self, call: str, tensor: torch.Tensor, reduction: Reduction) -> Flat:
        """Return the values to reduce.

        If the engine cannot apply the reduction's factor, the values are multiplied by it here.
        """
        if isinstance(reduction.factor, torch.Tensor):
            return self._flat(call, tensor.detach() * reduction.factor.to(tensor.dtype))
        if reduction.factor is not None and reduction.code is None:
            return self._flat(call, tensor.detach() * reduction.factor)
        return self._flat(call, tensor)

    def _arguments(self, reduction: Reduction) -> dict[str, Any]:
        number = reduction.factor if isinstance(reduction.factor, float) else 1.0
        return {"op": reduction.code, "prescale": number}

    def _folding(self, work: Any, reduction: Reduction, target: Flat) -> Callable[[], None]:
        """Return a function that reduces the parts received from all ranks and stores the result in ``target``."""

        def finish() -> None:
            values = output_of(work, (), target.tensor.dtype)
            result = fold(reduction, list(values.chunk(self._own_size))) if values.numel() else values
            if reduction.name == "AVG":
                result = result / self._own_size
            target.write(result)

        return finish

    def _counts(
        self, call: str, what: str, flat: Flat, tensor: torch.Tensor, splits: Sequence[int] | None
    ) -> list[int]:
        """Return the number of elements that all_to_all_single exchanges with each rank."""
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits:
            self._check(call, rows % self._own_size == 0, f"{what} rows that {self._own_size} ranks divide", rows)
            splits = [rows // self._own_size] * self._own_size
        fits = len(splits) == self._own_size and sum(splits) == rows
        self._check(call, fits, f"{what} splits for {self._own_size} ranks that add up to {rows}", list(splits))
        each = flat.tensor.numel() // rows if rows else 0
        return [split * each for split in splits]


def _all(finishes: list[Callable[[], None]]) -> Callable[[], None]:
    def finish() -> None:
        for one in finishes:
            one()

    return finish


def _distributing(work: Any, targets: list[Flat], sizes: int | list[int] | None = 0) -> Callable[[], None]:
    """Return a function that copies an operation's output into ``targets``.

    Args:
        work: Work of an allgather or alltoall.
        targets: Tensors that receive the results: one for all ranks, or one for each rank.
        sizes: List with the number of elements that each rank must have sent. 0 means that each rank sends as many as
            its target holds. A positive int is the number of ranks, which send equal parts of the only target. None
            means that only one rank sends, and that it fills the only target.
    """
    counts = [target.tensor.numel() for target in targets]
    if isinstance(sizes, list):
        counts = sizes
    elif sizes:
        counts = [counts[0] // sizes] * sizes

    def finish() -> None:
        got = work.sizes if sizes is not None else [sum(work.sizes)]
        if got != counts:
            rank = next(index for index, (one, other) in enumerate(zip(got, counts, strict=True)) if one != other)
            raise ValueError(f"the output must have room for {got[rank]} elements of rank {rank}, got {counts[rank]}")
        values = output_of(work, (), targets[0].tensor.dtype)
        if len(targets) == 1:
            targets[0].write(values)
            return
        for target, part in zip(targets, values.split(counts), strict=True):
            target.write(part)

    return finish
