"""DistributedOptimizer with op=Adasum: what ranks combine are not gradients but what a step has made of them.

Each rank takes the plain optimizer's step with its own gradients. How far that has moved each parameter is reduced with
Adasum, and every rank moves its parameters that far from where they were. Source: S. Maleki et al., "Scaling
Distributed Training with Adaptive Summation", MLSys 2021.

All parameters to be trained take part in every step, as Adasum leaves one that nobody has moved where it is. So ranks
may have gradients for different parameters, but all have to take the same steps: a gradient scaler that skips the step
on the one rank whose gradients have overflowed makes the others wait.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from horovod.common.ops import Adasum, check_adasum_size
from horovod.common.process_sets import ProcessSet
from horovod.torch.hooks import Hooks
from horovod.torch.ops import handles
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.tensors import plain
from horovod.torch.options import Options
from horovod.torch.parameter_names import Members
from horovod.torch.progress import Progress


def check_set(process_set: ProcessSet) -> None:
    """Raises NotImplementedError, naming the set or its size, for sets over which an optimizer cannot use Adasum."""
    if process_set.process_set_id != 0:
        raise NotImplementedError(f"DistributedOptimizer: op=Adasum works on all ranks only, not on {process_set}")
    check_adasum_size("DistributedOptimizer", len(process_set.ranks or ()))


class _Slot:
    """A parameter, its name on the wire, and where it was before the step."""

    def __init__(self, parameter: torch.Tensor, name: str, passes: int) -> None:
        self.parameter = parameter
        self.name = name
        self.left = passes  # backward passes until the step
        self.hook: Any = None
        self.start: torch.Tensor | None = None

    def remember(self) -> torch.Tensor:
        p = self.parameter.detach()
        if self.start is None or self.start.shape != p.shape or self.start.dtype is not p.dtype:
            self.start = torch.empty_like(p)
        return self.start.copy_(p)


class DeltaReducer:
    """The parameters of one optimizer; takes the place of a GradientReducer."""

    busy = False  # nothing is on its way between backward and step

    def __init__(self, members: Members, names: dict[torch.Tensor, str], options: Options) -> None:
        """``names``: of every parameter, unique among the operations of the process set and equal on all ranks."""
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
        """Unique in the job."""
        return f"adasum.{self._slots[0].name}" if self._slots else ""

    def add(self, parameters: Iterable[torch.Tensor], names: dict[torch.Tensor, str]) -> None:
        """Takes care of more parameters."""
        for p in parameters:
            self._slots.append(_Slot(p, names[p], self.options.passes))
        self.reset()

    def close(self) -> None:
        """Removes the hooks."""
        for slot in self._slots:
            if slot.hook is not None:
                slot.hook.remove()
                slot.hook = None

    def reset(self) -> None:
        """Starts to count backward passes anew."""
        for slot in self._slots:
            slot.left = self.options.passes
            if slot.hook is None and slot.parameter.requires_grad:
                self._hooks.add(slot)

    def set_passes(self, passes: int) -> None:
        """Expects so many backward passes between steps from now on."""
        self.options.passes = passes
        self.reset()

    def synchronize(self, only_new: bool = False) -> None:
        """Nothing to wait for: gradients stay as they are."""

    def reduce_left_out(self) -> None:
        """Nothing to reduce before a step."""

    def stepped(self) -> None:
        """Nothing to note."""

    def zeroed(self) -> None:
        """Gradients are being zeroed; passes count anew."""
        self.reset()

    def step(self, step: Callable[[], Any]) -> Any:
        """Runs ``step``, which moves the parameters, and combines these moves over all ranks, which call it too.

        Raises HorovodInternalError when ranks disagree or one is lost, and what ``step`` raises (the other ranks then
        wait for this one). Parameters are where they were then, and backward passes count anew.
        """
        self._members.take_in(self)
        # A step also moves a frozen parameter that has a gradient.
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
        """Makes each parameter, which holds how far it has moved, hold how far it is to move."""
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
        """(slot, its operation's name, its group's, how many belong to that)."""
        grouped = {slot for group in self._groups for slot in group}
        for slot in slots:
            if slot not in grouped:
                yield slot, "allreduce." + slot.name, "", 0
        for group in self._groups:
            members = [slot for slot in group if slot.parameter.requires_grad]
            for i, slot in enumerate(members):
                name = f"grouped_allreduce.{members[0].name}"
                yield slot, f"{name}_{i + 1}of{len(members)}", name, len(members)

    def on_gradient(self, slot: _Slot) -> None:
        """A backward pass has made the slot's gradient."""
        slot.left -= 1
        if slot.left < 0:
            passes = self.options.passes
            raise AssertionError(
                f"gradient {slot.name!r} was computed more than backward_passes_per_step={passes} times before step(); "
                "raise backward_passes_per_step to sum up gradients locally"
            )
