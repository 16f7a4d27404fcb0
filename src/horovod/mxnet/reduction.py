"""In-place reduction of lists of gradients, for MXNet's optimizer and trainer."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from horovod.common.compression import check_compression, check_wire, leaves_alone
from horovod.common.frontends import MXNET as face
from horovod.common.ops import Average
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop import gradients as rules
from horovod.common.training_loop.steps import marks
from horovod.mxnet.compression import Compression
from horovod.mxnet.operations import reduce


def check_groups(num_groups: Any) -> int:
    """Check ``num_groups`` and convert it to an int.

    Raises:
        ValueError: ``num_groups`` is not an integer, or is negative.
    """
    if isinstance(num_groups, bool) or not isinstance(num_groups, Integral) or num_groups < 0:
        raise ValueError(f"num_groups must be an integer of at least 0, got {num_groups!r}")
    return int(num_groups)


@dataclass(frozen=True)
class Reducer:
    """Averaging of gradients over the ranks of a process set."""

    predivide: float
    num_groups: int
    process_set: ProcessSet
    compression: Any

    @classmethod
    def checked(
        cls,
        predivide: Any = 1.0,
        num_groups: Any = 0,
        process_set: ProcessSet = global_process_set,
        compression: Any = Compression.none,
    ) -> "Reducer":
        """Check the arguments and create the reduction.

        Raises:
            ValueError: An argument is invalid; the message names it.
        """
        if not isinstance(process_set, ProcessSet):
            raise ValueError(f"process_set must be a ProcessSet, got a {type(process_set).__name__}")
        check_compression(compression)
        return cls(rules.check_predivide(predivide, Average), check_groups(num_groups), process_set, compression)

    def reduce(self, gradients: Sequence[Any], names: Sequence[str], priorities: Sequence[int]) -> None:
        """Overwrite gradients with their averages over the ranks.

        The gradients can have different dtypes. Nothing happens if the process set has only one rank. ``names`` must be
        the same on all ranks. ``priorities`` are the operations' priorities in MXNet's engine.
        """
        if not gradients or not rules.anybody_else(self.process_set, face.require_job()):
            return
        if not self.num_groups:
            for gradient, name, priority in zip(gradients, names, priorities, strict=True):
                self._reduce([gradient], name, priority, grouped=False)
            return
        for part in rules.parts(range(len(gradients)), self.num_groups):
            # Name the group after its first gradient, so that the engine detects ranks with different numbers of
            # gradients.
            members = [gradients[i] for i in part]
            self._reduce(members, f"{names[part[0]]}.group", max(priorities[i] for i in part), grouped=True)

    def _reduce(self, gradients: list[Any], name: str, priority: int, grouped: bool) -> None:
        wire = max(check_wire(self.compression, gradient, Average, name) for gradient in gradients)
        prescale, postscale = rules.scales(self.predivide)
        how = (Average, name, priority, prescale, postscale, self.process_set, wire, grouped)
        if leaves_alone(self.compression):
            reduce(gradients, True, *how)
            return
        pairs = [self.compression.compress(gradient) for gradient in gradients]
        reduced = reduce([tensor for tensor, _ in pairs], True, *how)
        for gradient, tensor, (_, context) in zip(gradients, reduced, pairs, strict=True):
            result = self.compression.decompress(tensor, context)
            if result is not gradient:
                gradient[:] = result

    def step_ends(self, who: object) -> None:
        """Count a step of the optimizer or trainer."""
        marks.optimizer(who)
