"""Mapping of c10d's reductions to those of the engine, and local computation of the others."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from horovod.common.ops import Average, Max, Min, Product, Sum
from horovod.torch.ops.tensors import CODES

_ENGINE = {"SUM": Sum, "AVG": Average, "MIN": Min, "MAX": Max, "PRODUCT": Product, "PREMUL_SUM": Sum}
_LOCAL: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "PRODUCT": torch.mul,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_LINEAR = ("SUM", "AVG", "PREMUL_SUM")


class Reduction(NamedTuple):
    """A reduction for tensors of one dtype.

    Attributes:
        name: Name in c10d, such as "SUM".
        code: The engine's code of the reduction, or None if ``fold`` computes it.
        factor: Number or tensor by which the input is multiplied first. None for no factor.
    """

    name: str
    code: int | None
    factor: Any = None


def reduction_of(op: Any, dtype: torch.dtype, scatters: bool = False) -> Reduction:
    """Return the Reduction for an ``op`` of c10d and a dtype.

    Args:
        op: c10d's ReduceOp, or a member of its enumeration.
        dtype: Dtype of the tensors.
        scatters: True for a reduce_scatter, for which the engine supports only sums and averages.

    Raises:
        ValueError: If the reduction is unknown or not defined for the dtype.
    """
    kind = getattr(op, "op", op)
    name = getattr(kind, "name", str(kind))
    if name not in _LOCAL:
        raise ValueError(f"ReduceOp must be one of {', '.join(_LOCAL)}, got {name}")
    what = str(dtype).removeprefix("torch.")
    integral = not (dtype.is_floating_point or dtype.is_complex)
    if dtype.is_complex and name not in _LINEAR:
        raise ValueError(f"ReduceOp must be SUM, AVG or PREMUL_SUM for {what} tensors, got {name}")
    if integral and name in ("AVG", "PREMUL_SUM"):
        raise ValueError(f"ReduceOp {name} needs floating-point or complex tensors, got {what}; use SUM and divide")
    if name.startswith("B") and not integral:
        raise ValueError(f"ReduceOp {name} needs integer or bool tensors, got {what}")
    if not dtype.is_complex and dtype not in CODES:
        raise ValueError(f"reductions accept {', '.join(str(one)[6:] for one in CODES)} and complex, got {what}")
    factor = op.__getstate__()[1] if name == "PREMUL_SUM" and isinstance(op, ReduceOp) else None
    if name == "PREMUL_SUM" and factor is None:
        raise ValueError("ReduceOp PREMUL_SUM must have a factor, got none")
    by_engine = name in _ENGINE and not (scatters and (name not in _LINEAR or dtype is torch.bool))
    if scatters and dtype is torch.bool and name == "SUM":
        return Reduction("BOR", None)
    return Reduction(name, _ENGINE[name] if by_engine else None, factor)


def fold(reduction: Reduction, parts: list[torch.Tensor]) -> torch.Tensor:
    """Reduce the ranks' parts in rank order, and return the result. 16-bit floats are accumulated in float32."""
    combine, dtype = _LOCAL[reduction.name], parts[0].dtype
    short = dtype in (torch.float16, torch.bfloat16)
    total = parts[0].float() if short else parts[0].clone()
    for part in parts[1:]:
        total = combine(total, part.float() if short else part)
    return total.to(dtype)
