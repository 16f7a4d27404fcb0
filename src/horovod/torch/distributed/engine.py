"""Functions that submit process group operations to the engine and wait for their completion."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from horovod._core import KIND_BARRIER, KIND_BROADCAST
from horovod.common import dtypes
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import state
from horovod.common.ops import Sum
from horovod.torch.ops import devices
from horovod.torch.ops.tensors import CODES

NAME = "torch.distributed"
"""Name under which process groups are registered as a frontend of the job."""

basics = HorovodBasics(NAME)

# Maximum duration of each blocking call (s). Between the calls, Python can run signal handlers (Ctrl-C).
_SLICE = 0.5


class Flat:
    """One-dimensional view (or copy) of a tensor, in a form that the engine accepts.

    Attributes:
        tensor: Dense, one-dimensional tensor with the values.
        code: The engine's dtype code.
        shape: Shape that the engine compares between ranks.
    """

    __slots__ = ("_source", "code", "shape", "tensor")

    def __init__(self, tensor: torch.Tensor, copy: bool = True) -> None:
        """Create a view of a tensor or, if a view is impossible, a copy. With ``copy=False``, no values are copied.

        Raises:
            ValueError: If the tensor is sparse or on an unsupported device.
        """
        if tensor.layout is not torch.strided:
            raise ValueError(f"tensors must be dense, got layout {tensor.layout}")
        if not tensor.is_cpu and not devices.accepts(tensor):
            raise ValueError(f"tensors must be on {devices.supported()}, got one on {tensor.device}")
        dense = tensor.detach()
        self._source: torch.Tensor | None = None
        if not dense.is_contiguous() or dense.is_neg() or dense.is_conj():
            self._source = dense
            dense = (
                dense.resolve_conj().resolve_neg().contiguous()
                if copy
                else torch.empty(dense.shape, dtype=dense.dtype, device=dense.device)
            )
        if dense.is_complex():
            dense = torch.view_as_real(dense)
        code = CODES.get(dense.dtype)
        self.shape = tuple(dense.shape)
        self.tensor = dense.reshape(-1)
        if code is None:
            self.tensor, code = self.tensor.view(torch.uint8), dtypes.UINT8
            self.shape = (self.tensor.numel(),)
        self.code = code

    def write(self, values: torch.Tensor | None = None) -> None:
        """Copy ``values``, or the engine's result if ``values`` is None, into the original tensor."""
        if values is not None:
            self.tensor.copy_(values)
        if self._source is not None:
            dense = self.tensor.view(self._source.dtype) if not self._source.is_complex() else self.tensor
            if self._source.is_complex():
                dense = torch.view_as_complex(dense.view(*self._source.shape, 2))
            self._source.copy_(dense.view(self._source.shape))


def submit(
    submitter: Callable[..., Any],
    kind: int,
    source: Flat,
    target: Flat,
    number: int,
    *,
    op: int = Sum,
    root: int = 0,
    prescale: float = 1.0,
    splits: list[int] | None = None,
    shape: Sequence[int] | None = None,
    name: str = "",
) -> Any:
    """Submit one operation to the engine.

    Args:
        submitter: ``Engine.submit`` or ``Engine.run``, bound to the frontend number of the process group.
        kind: Kind of operation, a ``KIND_*`` constant of ``horovod._core``.
        source: Values that this rank contributes.
        target: Tensor that receives the result, on the same device as ``source``.
        number: Id of the process set.
        op: Reduction, such as ``Sum``.
        root: Rank of the root in the job.
        prescale: Factor applied before the reduction.
        splits: Number of elements for each rank in an alltoall.
        shape: Shape that is compared between ranks. Default: one dimension with all elements.
        name: Name of the operation. Operations without a name are matched by their order.

    Returns:
        Work of the engine.

    Raises:
        ValueError: If input and output are on different devices.
    """
    tensor, out = source.tensor, target.tensor
    arguments = (
        kind,
        name,
        tensor.data_ptr(),
        out.data_ptr(),
        shape if shape is not None else (tensor.numel(),),
        source.code,
        op,
        root,
        prescale,
        1.0,
        number,
        splits,
        "",
        0,
    )
    if tensor.is_cpu and out.is_cpu:
        return submitter(*arguments)
    device = tensor.device
    if out.device != device:
        raise ValueError(f"input and output must be on one device, got {device} and {out.device}")
    adapter = devices.ADAPTERS[device.type]
    stream = adapter.current_stream(device)
    work = submitter(*arguments, device_kind=adapter.kind, device=device.index or 0, stream=stream)
    return devices.DeviceWork(work, adapter, device, stream, (tensor, out))


def submit_barrier(submitter: Callable[..., Any], number: int) -> Any:
    """Submit a barrier and return its Work."""
    return submitter(KIND_BARRIER, "", 0, 0, (), dtypes.UINT8, Sum, 0, 1.0, 1.0, number, None, "", 0)


def wait(work: Any, deadline: float) -> bool:
    """Wait for an operation until ``deadline`` (``time.monotonic()``).

    Returns:
        False if the operation is not done by ``deadline``.

    Raises:
        ValueError: If the engine rejects the operation.
        HorovodInternalError: If the operation failed.
    """
    while True:
        left = deadline - time.monotonic()
        if work.wait(max(0.0, min(left, _SLICE))):
            return True
        if left <= 0:
            return False
        if state.forked:
            raise HorovodInternalError("this process was forked from a rank and cannot wait for its operations")


def exchange_number(number: int) -> int:
    """Broadcast a number from rank 0, and return it on all ranks of the job."""
    frontend = state.frontends[NAME]
    value = Flat(torch.tensor([number]))
    submit(frontend.run, KIND_BROADCAST, value, value, 0, name=f"{NAME}.store").wait()
    return int(value.tensor[0])


def failure(call: str, group: str, error: object) -> Exception:
    """Return the exception to raise for a failed call; its message names the call and the process group."""
    kind = getattr(dist, "DistBackendError", RuntimeError)
    return kind(f"{call} in process group {group}: {error}")
