"""DistributedOptimizer with ``op=Adasum``, where ranks combine the updates of a step instead of its gradients.

Each rank takes a local step of the wrapped optimizer with its own gradients. The change of each parameter is reduced
with Adasum, and every rank applies the result to the parameters as they were before the step. Source: S. Maleki et al.,
"Scaling Distributed Training with Adaptive Summation", MLSys 2021.

All trainable parameters take part in every step. A parameter that no rank has changed keeps its value. So ranks can
have gradients for different parameters, but all ranks must take the same steps. If gradients overflow on one rank only,
its gradient scaler skips the step, and the other ranks wait for it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from horovod.common.ops import Adasum, check_adasum_size
from horovod.common.process_sets import ProcessSet
from horovod.common.training_loop.weights import check_weighted_op, current
from horovod.torch.monitoring import Progress
from horovod.torch.ops import handles
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.tensors import plain
from horovod.torch.reducer.backward import Hooks
from horovod.torch.reducer.parameter_names import Members
from horovod.torch.reducer.submissions import Options


def check_set(process_set: ProcessSet) -> None:
    """Check that an optimizer can use Adasum over this process set.

    Raises:
        NotImplementedError: If the set is not the global one, or its size is not a power of two.
    """
    if process_set.process_set_id != 0:
        raise NotImplementedError(f"DistributedOptimizer: process_set must be global for op=Adasum, got {process_set}")
    check_adasum_size("DistributedOptimizer", len(process_set.ranks or ()))


class _Slot:
    """Adasum state of one parameter: its operation name, and its values before the step."""

    def __init__(self, parameter: torch.Tensor, name: str, passes: int) -> None:
        self.parameter = parameter
        self.name = name
        # Number of backward passes remaining before the step.
        self.remaining = passes
        self.hook: Any = None
        self.start: torch.Tensor | None = None

    def remember(self) -> torch.Tensor:
        p = self.parameter.detach()
        if self.start is None or self.start.shape != p.shape or self.start.dtype is not p.dtype:
            self.start = torch.empty_like(p)
        return self.start.copy_(p)


class DeltaReducer:
    """Reducer that combines one optimizer's updates with Adasum, in place of a GradientReducer."""

    # Always False, because no reduction is in flight between backward and step.
    busy = False

    def __init__(self, members: Members, names: dict[torch.Tensor, str], options: Options) -> None:
        """Register hooks on the parameters of one optimizer.

        ``names`` must be unique among the operations of the process set and the same on all ranks.
        """
        self.options = options
        self.progress = Progress()
        self._members = members
        self._slots: list[_Slot] = []
        self._hooks = Hooks(self)
        self.add(members.names, names)
        slot_of = {slot.parameter: slot for slot in self._slots}
        self._groups = [[slot_of[p] for p in group] for group in options.groups]

    @property
    def name(self) -> str:
        """Name of this reducer, unique in the job."""
        return f"adasum.{self._slots[0].name}" if self._slots else ""

    def add(self, parameters: Iterable[torch.Tensor], names: dict[torch.Tensor, str]) -> None:
        """Start reducing the updates of new parameters."""
        for p in parameters:
            self._slots.append(_Slot(p, names[p], self.options.passes))
        self.reset()

    def close(self) -> None:
        """Remove the gradient hooks of all parameters."""
        for slot in self._slots:
            if slot.hook is not None:
                slot.hook.remove()
                slot.hook = None

    def reset(self) -> None:
        """Reset the count of backward passes to 0."""
        for slot in self._slots:
            slot.remaining = self.options.passes
            if slot.hook is None and slot.parameter.requires_grad:
                self._hooks.add(slot)

    def set_passes(self, passes: int) -> None:
        """Set the number of backward passes per step to ``passes``."""
        self.options.passes = passes
        self.reset()

    def synchronize(self, only_new: bool = False) -> None:
        """Do nothing, because Adasum reduces the changes of the parameters in ``step``, not the gradients."""

    def reduce_left_out(self) -> None:
        """Do nothing, because Adasum does not reduce gradients."""

    def stepped(self) -> None:
        """Do nothing, because a step leaves no state to reset."""

    def zeroed(self) -> None:
        """Restart the count of backward passes, because the gradients are being zeroed."""
        self.reset()

    def step(self, step: Callable[[], Any]) -> Any:
        """Run ``step``, which changes the parameters, and combine its changes across all ranks.

        All ranks must call this method. After an exception, parameters have their values from before the step, and the
        count of backward passes is reset.

        Returns:
            Result of ``step``.

        Raises:
            HorovodInternalError: If ranks disagree, or a rank was lost.
            Exception: If ``step`` failed. The other ranks wait for this rank in this case.
        """
        self._members.take_in(self)
        # Include frozen parameters that have a gradient, because the optimizer step changes these parameters too.
        slots = [s for s in self._slots if s.parameter.requires_grad or s.parameter.grad is not None]
        with torch.no_grad():
            starts = [slot.remember() for slot in slots]
        try:
            result = step()
            with torch.no_grad():
                for slot, start in zip(slots, starts, strict=True):
                    slot.parameter.detach().sub_(start)
                self._reduce(slots)
        except BaseException:
            with torch.no_grad():
                for slot, start in zip(slots, starts, strict=True):
                    slot.parameter.detach().copy_(start)
            raise
        finally:
            self.reset()
        with torch.no_grad():
            for slot, start in zip(slots, starts, strict=True):
                slot.parameter.detach().add_(start)
        return result

    def _reduce(self, slots: Sequence[_Slot]) -> None:
        """Combine the parameter changes of all ranks with Adasum.

        The parameters contain this rank's changes before the call, and the combined changes after it.
        """
        compression = self.options.compression
        works, finishes = [], []
        try:
            for slot, name, group, size in self._operations(slots):
                delta = slot.parameter.detach()
                tensor, context = compression.compress(delta)
                tensor = plain(tensor)
                finishes.append((delta, tensor, context))
                works.append(submit(tensor, tensor, name, Adasum, 1.0, 1.0, self.options.process_set, group, size))
        finally:
            handles.wait_all(works, finishes)
        for delta, tensor, context in finishes:
            result = compression.decompress(tensor, context)
            if result.data_ptr() != delta.data_ptr():
                delta.copy_(result)

    def _operations(self, slots: Sequence[_Slot]) -> Iterator[tuple[_Slot, str, str, int]]:
        """Yield each parameter of the optimizer, as (slot, name of its allreduce, group name, group size)."""
        grouped = {slot for group in self._groups for slot in group}
        for slot in slots:
            if slot not in grouped:
                yield slot, "allreduce." + slot.name, "", 0
        for group in self._groups:
            members = [slot for slot in group if slot.parameter.requires_grad]
            for i, slot in enumerate(members):
                name = f"grouped_allreduce.{members[0].name}"
                yield slot, f"{name}_{i + 1}of{len(members)}", name, len(members)

    def weigh_from_now(self) -> None:
        """Do nothing, because Adasum does not support weights."""

    def on_gradient(self, slot: _Slot) -> None:
        """Count a backward pass of a parameter. Called after the gradient has been accumulated."""
        check_weighted_op(Adasum, current.batch if current.block is None else current.block)
        slot.remaining -= 1
        if slot.remaining < 0:
            passes = self.options.passes
            raise AssertionError(
                f"gradient {slot.name!r} was computed more than backward_passes_per_step={passes} times before step(); "
                "increase backward_passes_per_step to accumulate gradients locally"
            )
