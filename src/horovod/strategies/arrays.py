"""Training strategies for NumPy arrays.

Example::

    from horovod.strategies.arrays import LocalSGD

    strategy = LocalSGD([weights, bias], every=8)
    for batch in batches:
        strategy.before_step()
        update(weights, bias, batch)  # in place
        strategy.after_step()
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import horovod.numpy as hvd
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.strategies.averaging import GossipRounds, Rounds
from horovod.strategies.rules import AVERAGING, Graph, OuterSGD, Schedule, Vector
from horovod.strategies.serving import Serving, Store


class ArrayVector(Vector):
    """``Vector`` of NumPy arrays, which must be C-contiguous, writable and floating-point."""

    hvd = hvd

    def __init__(self, arrays: Sequence[Any]) -> None:
        for array in arrays:
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
                raise ValueError(f"arrays must be floating-point NumPy arrays, got {type(array).__name__}")
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise ValueError(f"arrays must be C-contiguous and writable, got another one of shape {array.shape}")
        super().__init__([array.reshape(-1) for array in arrays])
        self.dtype = "float64" if any(array.dtype == np.float64 for array in arrays) else "float32"

    def zeros(self, size: int) -> Any:
        return np.zeros(size, self.dtype)

    def half(self, values: Any) -> Any:
        return values.astype(np.float16)

    def full(self, values: Any) -> Any:
        return values.astype(self.dtype)

    def rows(self, values: Any, count: int) -> Any:
        return np.tile(values, (count, 1))

    def message(self, header: Sequence[float], values: Any) -> Any:
        return np.concatenate([np.asarray(header, np.float64).view(np.uint8), values.view(np.uint8)])

    def empty_message(self, header: int, size: int, half: bool) -> Any:
        return np.empty(8 * header + size * (2 if half else np.dtype(self.dtype).itemsize), np.uint8)

    def parse(self, message: Any, header: int, half: bool) -> tuple[list[float], Any]:
        values = message[8 * header :].view(np.float16 if half else self.dtype)
        return message[: 8 * header].view(np.float64).tolist(), values.astype(self.dtype)


class LocalSGD(Rounds):
    """Average NumPy arrays over the ranks after every ``every`` steps. See ``horovod.torch.LocalSGD``."""

    def __init__(
        self,
        arrays: Sequence[Any],
        every: int,
        *,
        synchronous_steps: int = 0,
        wire: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        schedule = Schedule(every, synchronous_steps=synchronous_steps)
        super().__init__(ArrayVector(arrays), AVERAGING, schedule, wire, process_set, "LocalSGD")


class DiLoCo(Rounds):
    """Update shared NumPy arrays with an outer optimizer after every ``every`` steps. See ``horovod.torch.DiLoCo``."""

    def __init__(
        self,
        arrays: Sequence[Any],
        outer: OuterSGD | None = None,
        every: int = 500,
        fragments: int = 1,
        overlap: int = 0,
        wire: str | None = None,
        *,
        mixing: float = 0.0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        schedule = Schedule(every, fragments, overlap)
        super().__init__(ArrayVector(arrays), outer or OuterSGD(), schedule, wire, process_set, "DiLoCo", mixing)


class Gossip(GossipRounds):
    """Average NumPy arrays with those of another rank after every step. See ``horovod.torch.Gossip``."""

    def __init__(
        self,
        arrays: Sequence[Any],
        graph: str | Graph = "exponential",
        push_sum: bool = True,
        *,
        every: int = 1,
        average_every: int = 0,
        wire: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(ArrayVector(arrays), graph, push_sum, every, average_every, wire, process_set)


class ParameterServer(Serving):
    """Use the last ranks as servers that store the trained NumPy arrays. See ``horovod.torch.ParameterServer``.

    Args:
        arrays: The trained arrays.
        update: Function ``update(values, gradient)`` that updates ``values``, a slice of the parameters as a flat
            array, in place. Only servers call it. Ignored in "easgd" mode.
        servers, mode, staleness, every, rate, damping, wire, timeout: Same as in ``horovod.torch.ParameterServer``.
    """

    def __init__(
        self,
        arrays: Sequence[Any],
        update: Callable[[Any, Any], None] | None = None,
        servers: int = 1,
        mode: str = "sync",
        staleness: int | None = None,
        *,
        every: int = 1,
        rate: float | None = None,
        damping: bool = False,
        wire: str | None = None,
        timeout: float = 600.0,
    ) -> None:
        if not callable(update) and mode != "easgd":
            raise ValueError(f"update must be a function in mode {mode!r}, got {update!r}")
        vector = ArrayVector(arrays)

        def store(start: int, stop: int) -> Store:
            return Store(vector.read(start, stop), lambda values, gradient, _: update and update(values, gradient))

        super().__init__(vector, store, servers, mode, staleness, every, rate, damping, wire, timeout)

    def before_step(self) -> None:
        """Prepare for a local update in "easgd" mode. The first call broadcasts the arrays from rank 0."""
        self.start()

    def step(self, gradients: Sequence[Any] = ()) -> None:
        """Send gradients or arrays to the servers, and overwrite the arrays with the servers' reply.

        Args:
            gradients: Gradients of the arrays, with None for an array without a gradient. In "easgd" mode, a step
                consists of ``before_step``, an update of the arrays, and this call. Gradients are then ignored.

        Raises:
            HorovodInternalError: If a rank was lost, or a server has failed.
        """
        self.start()
        if self.mode == "easgd":
            self.step_apart()
        else:
            self.step_with([None if one is None else np.asarray(one).reshape(-1) for one in gradients])

    def serve(self) -> bool:  # type: ignore[override]
        """Run the server until all workers are done, and return True. On a worker, return False immediately."""
        if hvd.rank() in self.roles().workers:
            return False
        super().serve()
        return True
