"""Conversion of model and optimizer tensors to a form that the engine can send.

State is only copied. Dtypes without arithmetic in the engine (complex, 8-bit floats, unsigned 32- and 64-bit integers)
are therefore sent as bytes. A sparse tensor is sent as its component tensors.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from horovod.common import objects
from horovod.common.frontends import TORCH as frontend
from horovod.common.process_sets import ProcessSet
from horovod.torch.ops import devices, handles
from horovod.torch.ops.broadcast import broadcast_async_
from horovod.torch.ops.tensors import CODES, plain

_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""For each sparse layout, the methods that return the strided tensors of which such a tensor consists."""


@dataclass(frozen=True)
class Form:
    """Properties that two tensors must share before one can be copied to the other's memory."""

    layout: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Dtypes and shapes of the tensors that a sparse tensor consists of."""
    coalesced: bool = False
    """True for a sparse COO tensor with unique, sorted indices."""
    overlapping: tuple[int, ...] = ()
    """Strides of a tensor whose elements share memory. Empty for other tensors."""

    def __str__(self) -> str:
        more = f" of parts {list(self.parts)}" if self.parts else ""
        more += " (coalesced)" if self.coalesced else ""
        more += f" with strides {self.overlapping}" if self.overlapping else ""
        return f"{self.layout} {self.dtype} {list(self.shape)}{more}"


def form_of(tensor: torch.Tensor) -> Form | None:
    """Return the properties that ranks must compare before a broadcast, or None if the engine compares them itself.

    Raises:
        ValueError: If the tensor cannot be sent. The message contains the reason.
    """
    if tensor.is_quantized:
        raise ValueError(f"must not be quantized, got dtype {tensor.dtype}; send tensor.int_repr() and the scale")
    if tensor.layout is not torch.strided and tensor.layout not in _PARTS:
        raise ValueError(f"must have the layout {torch.strided} or a sparse one, got {tensor.layout}")
    if tensor.is_nested or not (tensor.is_cpu or devices.accepts(tensor) or tensor.layout in _PARTS):
        found = "a nested tensor" if tensor.is_nested else f"device {tensor.device}"
        raise ValueError(f"must be a plain tensor on {devices.supported()}, got {found}")
    parts = parts_of(tensor)
    for part in parts:
        if not (part.is_cpu or devices.accepts(part)):
            raise ValueError(f"must be on {devices.supported()}, got device {part.device}")
    what = _name(tensor.layout), _name(tensor.dtype), tuple(tensor.shape)
    if tensor.layout is not torch.strided:
        made_of = tuple((_name(part.dtype), tuple(part.shape)) for part in parts)
        return Form(*what, made_of, tensor.layout is torch.sparse_coo and tensor.is_coalesced())
    overlapping = _overlap(tensor)
    return Form(*what, overlapping=overlapping) if overlapping or tensor.dtype not in CODES else None


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the strided tensors that hold a tensor's values. For a dense tensor, this is the tensor itself."""
    if tensor.layout is torch.strided:
        return [tensor.detach()]
    return [getattr(tensor.detach(), name)() for name in _PARTS[tensor.layout]]


def empty_like(form: Form, device: str) -> torch.Tensor:
    """Return an uninitialized tensor with the properties in ``form``, whose elements do not share memory."""
    if not form.parts:
        return torch.empty(form.shape, dtype=getattr(torch, form.dtype), device=device)
    parts = [torch.zeros(shape, dtype=getattr(torch, dtype), device=device) for dtype, shape in form.parts]
    layout = getattr(torch, form.layout)
    if layout is torch.sparse_coo:
        made = torch.sparse_coo_tensor(*parts, form.shape, device=device, check_invariants=False)
        return made._coalesced_(form.coalesced)
    return torch.sparse_compressed_tensor(*parts, form.shape, layout=layout, device=device, check_invariants=False)


def carried(part: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Return a tensor to send, and a function that copies the received values back to ``part``.

    The function is None if the tensor to send is ``part`` itself or shares its memory.
    """
    dense = plain(part)
    sent = dense if dense.dtype in CODES else dense.resolve_conj().reshape(-1).view(torch.uint8)
    if sent.data_ptr() == part.data_ptr() and not part.is_neg() and not part.is_conj():
        return sent, None
    received = sent if dense.dtype in CODES else sent.view(dense.dtype).view(dense.shape)

    def install() -> None:
        with torch.no_grad(), torch.inference_mode(part.is_inference()):
            _write(part, received)

    return sent, install


def _write(part: torch.Tensor, values: torch.Tensor) -> None:
    if not _overlap(part):
        part.copy_(values)
        return
    # Write all elements, even those that overlap in memory, because overlapping elements receive equal values.
    memory = part.as_strided((_extent(part),), (1,))
    places = torch.arange(len(memory), device=part.device).as_strided(part.shape, part.stride(), 0)
    memory[places.reshape(-1)] = values.reshape(-1)


def _extent(tensor: torch.Tensor) -> int:
    return 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _overlap(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's strides if its elements overlap in memory, as in an expanded tensor, or else an empty tuple."""
    if tensor.numel() < 2 or tensor.is_contiguous():
        return ()
    steps = sorted((stride, n) for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    # Number of elements spanned by the dimensions seen so far, which have smaller strides.
    reached = 0
    for stride, n in steps:
        if stride <= reached:
            return tuple(tensor.stride())
        reached += (n - 1) * stride
    return ()


def broadcast_all(named: Iterable[tuple[str, torch.Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    """Overwrite tensors with the root's tensors. Call ``check_forms`` first."""
    installs: list[Callable[[], None]] = []
    issued: list[int] = []
    try:
        for name, tensor in named:
            for number, part in enumerate(parts_of(tensor)):
                # Send a transposed or channels-last tensor as a contiguous copy, because layouts can differ between
                # ranks.
                sent, install = carried(part)
                if install is not None:
                    installs.append(install)
                issued.append(broadcast_async_(sent, root_rank, f"{name}/{number}" if number else name, process_set))
    finally:
        handles.synchronize_all(issued)
    for install in installs:
        install()


def check_forms(operation: str, forms: dict[str, Form], complaint: str, process_set: ProcessSet, names: str) -> None:
    """Raise an error on every rank if a rank reports a problem, or if the forms (shape, dtype) of tensors differ.

    Every rank of the process set calls this before any tensor is sent, so that no rank waits for a rank that has
    failed.

    Args:
        operation: Name of the operation, with which the error message begins.
        forms: Forms of this rank's tensors by name. Tensors without a form are left out.
        complaint: Reason why this rank cannot continue; empty if it can.
        process_set: Ranks that compare.
        names: Name of the operation on the wire.

    Raises:
        ValueError: If a rank has a complaint, or forms differ.
    """
    answers = objects.allgather_object((complaint, forms), names, process_set, frontend=frontend)
    ranks = process_set.ranks or ()
    complaints = [f"rank {rank}: {why}" for rank, (why, _) in zip(ranks, answers, strict=True) if why]
    first = answers[0][1]
    for rank, (_, theirs) in zip(ranks, answers, strict=True):
        for name in sorted({*first, *theirs}):
            if first.get(name) != theirs.get(name) and not complaints:
                one, other = (given.get(name) or "another form" for given in (first, theirs))
                complaints.append(f"{name!r} is {one} on rank {ranks[0]} and {other} on rank {rank}")
    if complaints:
        raise ValueError(f"{operation}: " + "; ".join(complaints)[:2000])
