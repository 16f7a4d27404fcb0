"""PyTorch optimizer for the slice of the parameters that a parameter server stores."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.strategies.rules import segments
from horovod.strategies.serving import Serving, Store
from horovod.strategies.vector import Vector


class SlicedOptimizer(Store):
    """A store that updates its slice with a copy of a torch optimizer, which contains only the slice's state.

    Args:
        optimizer: Optimizer of the whole model, whose state for the slice is copied.
        vector: The parameters of the optimizer.
        start, stop: Elements of the vector that form the slice.
    """

    def __init__(self, optimizer: Any, vector: Vector, start: int, stop: int) -> None:
        super().__init__(vector.read(start, stop), self._step)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._segments = segments(vector.sizes, start, stop)
        self._tensors = {s.index: self.values[s.offset : s.offset + s.stop - s.start] for s in self._segments}
        groups, first = [], 0
        for group in optimizer.param_groups:
            indices = range(first, first + len(group["params"]))
            groups.append({**group, "params": [self._tensors[i] for i in indices if i in self._tensors]})
            first += len(group["params"])
        state: dict[Any, Any] = defaultdict(dict)
        for index, low, high, _ in self._segments:
            entries = optimizer.state.get(parameters[index], {})
            state[self._tensors[index]] = {
                key: _part(value, vector.sizes[index], low, high) for key, value in entries.items()
            }
        plain = optimizer._hvd_plain
        self._optimizer = plain.__new__(plain)
        # With this attribute, no warning says that the optimizer is not distributed.
        self._optimizer._hvd_strategy = None
        self._optimizer.__setstate__({"defaults": optimizer.defaults, "state": state, "param_groups": groups})

    @staticmethod
    def options_of(optimizer: Any) -> Callable[[], list[float]]:
        """Return a function that returns the current numeric options of all groups, such as learning rates."""
        return lambda: [float(group[key]) for group in optimizer.param_groups for key in _numeric(optimizer, group)]

    def _step(self, _: Any, gradient: Any, options: Sequence[float]) -> None:
        numbers = iter(options)
        for group in self._optimizer.param_groups:
            for key in _numeric(self._optimizer, group):
                group[key] = next(numbers)
        for index, low, high, offset in self._segments:
            self._tensors[index].grad = gradient[offset : offset + high - low]
        self._optimizer.step()

    def state(self) -> list[tuple[int, int, int, dict[str, Any]]]:
        """Return the optimizer's state as a list of (index of the parameter, start, stop, entries)."""
        state = self._optimizer.state
        return [(s.index, s.start, s.stop, dict(state.get(self._tensors[s.index], {}))) for s in self._segments]


def adopt(optimizer: Any, snapshots: Sequence[dict[str, Any]], strategy: Serving) -> None:
    """Copy the servers' optimizer state to a rank's wrapped optimizer."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if strategy.mode == "easgd":
        return  # In "easgd" mode, each worker keeps its own optimizer state.
    for snapshot in snapshots:
        for index, low, high, entries in snapshot["state"]:
            p = parameters[index]
            mine = optimizer.state[p] if entries else {}
            for key, value in entries.items():
                if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.numel() != high - low:
                    mine[key] = value.clone() if isinstance(value, torch.Tensor) else value
                    continue
                if not isinstance(mine.get(key), torch.Tensor) or mine[key].shape != p.shape:
                    mine[key] = torch.zeros_like(p, dtype=value.dtype, memory_format=torch.contiguous_format)
                mine[key].view(-1)[low:high] = value.to(p.device)


def _part(value: Any, size: int, low: int, high: int) -> Any:
    """Slice a state entry that has one number per element. Copy other entries."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dim() and value.numel() == size:
        return value.detach().reshape(-1)[low:high].to(torch.promote_types(value.dtype, torch.float32), copy=True)
    return value.clone()


def _numeric(optimizer: Any, group: dict[str, Any]) -> list[str]:
    """Return the names of a parameter group's numeric options, excluding entries added by schedulers."""
    numbers = (key for key in optimizer.defaults if type(group.get(key)) in (float, int))
    return sorted(numbers)
