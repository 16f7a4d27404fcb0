"""Per-rank weights for averages of gradients and values, shared by all frontends.

With weights n_r, an average over the ranks is ``sum(n_r * x_r) / sum(n_r)``. A weight is usually a number of samples or
tokens. This module does not communicate. A message with weights contains one float64 per rank. Each rank sets only its
own weight and sends zero bytes for the others. The elementwise maximum of all ranks' bytes then contains all weights.
The sign bit marks a rank without further batches (``-n``, or ``-0.0``). A rank that has called ``hvd.join()`` sends
zeros.
"""

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.ops import Average, op_name


def check_weight(weight: Any) -> float:
    """Check that ``weight`` is valid, and return it as a float.

    Raises:
        ValueError: If ``weight`` is not a finite number of 0 or more.
    """
    try:
        number = float(weight)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(weight, str | bytes) or not 0 <= number < math.inf:
        raise ValueError(f"weight must be a finite number of 0 or more, got {weight!r}")
    return number


def check_weighted_op(op: int, weight: Any, *scales: Any) -> None:
    """Raise ValueError if ``weight`` is used, unless ``op`` is Average and all scale factors are 1."""
    if weight is not None and op != Average:
        raise ValueError(f"weight requires op=Average, got op={op_name(op)}")
    if weight is not None and any(scale != 1 for scale in scales):
        raise ValueError(
            f"prescale_factor and postscale_factor must be 1.0 with weight, got {scales}; multiply the result instead"
        )


class Current:
    """Weight of this process's current backward passes, set by ``hvd.weight`` and ``hvd.sync``.

    The weight applies to the whole process and not to one thread, because autograd runs hooks in other threads.
    """

    def __init__(self) -> None:
        self.block: weight | None = None
        """Innermost ``hvd.weight`` block."""
        self.batch: float | None = None
        """Weight of the current batch of ``hvd.sync``, or None outside its loop."""
        self.last = False
        """True if ``hvd.sync`` has no batch after the current one."""
        self.padding = False
        """True if the current batch of ``hvd.sync`` is a copy, which always has the weight 0."""
        self.joins = False
        """True in an ``hvd.sync`` loop with the policy ``join``, in which other ranks can lack gradients to gather."""
        self.ended: list[bool] | None = None
        """For each rank of the global set, True if it had no further batch in the last message of this batch."""
        self.index = 0
        """Number of batches of ``hvd.sync`` loops so far."""
        self.stepped: set[str] = set()
        """Names of the optimizers that have made a step in the current ``hvd.sync`` loop."""

    @property
    def active(self) -> bool:
        """True within an ``hvd.weight`` block or an ``hvd.sync`` loop."""
        return self.block is not None or self.batch is not None

    def number(self, default: float | Callable[[], Any] | None) -> float:
        """Return this rank's weight.

        The result is the first of these that is set: ``hvd.weight``, ``default``, the weight of the batch, 1.
        """
        if self.padding:
            return 0.0
        if self.block is not None:
            return self.block.number
        if default is not None:
            return check_weight(default() if callable(default) else default)
        return 1.0 if self.batch is None else self.batch


current = Current()


def refuse_weights() -> None:
    """Raise ValueError within ``hvd.weight`` or ``hvd.sync`` if the optimizer does not support weights."""
    if current.active:
        raise ValueError(
            "hvd.weight() and hvd.sync() must not be used with hvd.ShardedOptimizer; use hvd.DistributedOptimizer"
        )


class weight:
    """Context manager that sets this rank's weight in averages of gradients.

    Run all backward passes of a step within one block. The gradients that they accumulate must be the mean over the
    ``n`` samples of this rank in this step. The reduced gradients are then the mean over the samples of all ranks. A
    rank with 0 samples takes part, but its gradients are ignored and can be NaN. If all ranks have 0 samples, the step
    is skipped. All ranks must begin to use weights at the same step of an optimizer, or never use them.

    Args:
        n (float): Number of samples, tokens or other units, at least 0.

    Raises:
        ValueError: If ``n`` is not a finite number of 0 or more.

    Example::

        with hvd.weight(tokens):
            for inputs, targets in micro_batches:
                (loss_sum(model(inputs), targets) / max(tokens, 1)).backward()
        optimizer.step()
    """

    def __init__(self, n: float) -> None:
        self.number = check_weight(n)
        self._outer: list[weight | None] = []

    def __enter__(self) -> "weight":
        self._outer.append(current.block)
        current.block = self
        return self

    def __exit__(self, *_: Any) -> None:
        current.block = self._outer.pop()


def encode(number: float, last: bool, me: int | None, ranks: int) -> bytearray:
    """Encode the message of one rank, which contains only this rank's weight.

    Args:
        number: Weight.
        last: True if this rank has no further batch.
        me: Position of this rank in the process set, or None if the rank takes no part.
        ranks: Size of the process set.
    """
    message = bytearray(8 * ranks)
    if me is not None:
        struct.pack_into("<d", message, 8 * me, -number if last else number)
    return message


def decode(message: bytes | bytearray) -> tuple[list[float], list[bool]]:
    """Decode a message into the weights of all ranks, and a list that is True for each rank that is out of batches."""
    numbers = struct.unpack(f"<{len(message) // 8}d", message)
    return [abs(n) for n in numbers], [math.copysign(1.0, n) < 0 for n in numbers]


def weighted_means(
    xp: Any,
    cast: Callable[[Any, Any], Any],
    values: Sequence[Any],
    weight: Any,
    sum_all: Callable[[Sequence[Any]], Sequence[Any]],
    sum_shares: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> tuple[list[Any], Any]:
    """Return the weighted mean over the ranks of each value, and the total weight.

    The means are zeros if the total weight is 0.

    A value with weight 0 can be NaN. By default, weights and values are summed in one operation. With ``sum_shares``,
    weights are summed first. Each rank then sends its share of the mean, which cannot overflow a 16-bit float.

    Args:
        xp: Module with the functions ``where``, ``zeros_like`` and ``ones_like`` for these values.
        cast: Function that converts an array to a dtype.
        values: Arrays in float32 or wider.
        weight: Weight of this rank, as an array without dimensions in float32 or wider.
        sum_all: Function that sums a list of arrays over the ranks in one operation, without loss.
        sum_shares: Function that sums the shares of the values, or None.
    """

    def scaled(value: Any, factor: Any) -> Any:
        return xp.where(factor > 0, value * cast(factor, value.dtype), xp.zeros_like(value))

    def divisor(total: Any, like: Any) -> Any:
        return cast(xp.where(total > 0, total, xp.ones_like(total)), like.dtype)

    if sum_shares is None:
        *sums, total = sum_all([*(scaled(value, weight) for value in values), weight])
        return [value / divisor(total, value) for value in sums], total
    (total,) = sum_all([weight])
    shares = [scaled(value, cast(weight, value.dtype) / divisor(total, value)) for value in values]
    return list(sum_shares(shares)), total


def weighted_allreduce(
    xp: Any,
    cast: Callable[[Any, Any], Any],
    tensor: Any,
    weight: Any,
    allreduce: Callable[..., Any],
    name: str | None,
    compression: Any = None,
) -> Any:
    """Return the weighted mean of one tensor over the ranks. The frontends' ``allreduce`` functions use this.

    Args:
        xp: Module with the functions of ``weighted_means``, ``reshape`` and ``concatenate`` or ``concat``.
        cast: Function that converts an array to a dtype.
        tensor: This rank's floating-point tensor.
        weight: This rank's weight, as an array without dimensions.
        allreduce: Function that sums a tensor over the ranks, with the arguments ``name`` and ``compression``.
        name: Name of the operation, or None.
        compression: Compressor, or None.

    Raises:
        ValueError: If the tensor is not a floating-point tensor.
    """
    if "float" not in str(tensor.dtype):
        raise ValueError(f"tensor must be a floating-point tensor with weight, got {tensor.dtype}")
    wide = "float64" if "float64" in str(tensor.dtype) else "float32"
    dtype = getattr(xp, wide, wide)
    value = cast(tensor, dtype)
    shape = xp.shape(value) if hasattr(xp, "shape") else value.shape
    concatenate = xp.concatenate if hasattr(xp, "concatenate") else xp.concat

    def sum_all(arrays: Sequence[Any]) -> Sequence[Any]:
        if len(arrays) == 1:
            return [allreduce(arrays[0], name=f"{name}.weight" if name else None)]
        sums = allreduce(concatenate([xp.reshape(array, (-1,)) for array in arrays], 0), name=name)
        return [xp.reshape(sums[:-1], shape), sums[-1]]

    def sum_shares(arrays: Sequence[Any]) -> Sequence[Any]:
        return [allreduce(arrays[0], name=name, compression=compression)]

    late = None if compression is None else sum_shares
    (mean,), _ = weighted_means(xp, cast, [value], cast(weight, dtype), sum_all, late)
    return cast(mean, tensor.dtype)
